"""`metaq restore`: makes a broker's directory of a back-up."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from journal.archive.places import archive_place
from journal.archive.view import read_manifest as read_archive
from journal.backup.copy_back import copy_back, read_manifest
from journal.backup.manifest import Manifest
from journal.errors import StorageFailed
from journal.records.record import PartitionName
from journal.repair.offline import read_state
from journal.state.wall_clock import wall_clock_ms
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.backup import manifest_lines, manifest_object
from meta_broker.cli.former_master import check_consent, configured_session, wait_for_dead_master
from meta_broker.cluster.cluster_identity import read_cluster_file
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError
from meta_broker.replication.promotion.promotion import in_doubt, read_cluster
from meta_broker.replication.promotion.promotion_check import CheckFinding
from meta_broker.restoring.restoration import Restored, leave_in_sync, require_empty, restore
from meta_broker.restoring.restore_check import ArchiveEnd, OtherId, RestoreFacts, beyond_end, check_restore
from meta_broker.restoring.skipped_offsets import bytes_to_skip, ends_after
from meta_client.cli.output import confirm
from meta_client.logs.audit import audit_offline
from meta_client.operations.progress import Progress
from meta_client.operations.text import printable
from zk.brokers.cluster_id import name_cluster, read_cluster_id
from zk.brokers.journal_position import JournalPosition, read_position
from zk.brokers.replication import VersionedReplication, claim_epoch, next_epoch
from zk.groups.listing import list_groups
from zk.session.session import ZooKeeperSession

SHOWN_MAX: Final = 20  # branches in doubt; `metaq txn list --dir` shows all

Stored = list[tuple[str, PartitionName, int]]  # group, partition, offset


@click.command(name="restore")
@click.argument("backup", metavar="BACKUP", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--zk", help="ZooKeeper of the broker, HOST:PORT[/chroot].")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the broker's broker.toml.",
)
@click.option(
    "--dry-run", is_flag=True, help="Verify the back-up, and show what would be done and lost; change nothing."
)
@click.option("--accept-loss", is_flag=True, help="Restore it though data that is only elsewhere is lost.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def restore_command(
    backup: Path,
    directory: Path,
    zk: str | None,
    config_path: Path | None,
    dry_run: bool,
    accept_loss: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make DIR, a new directory, the data directory of the broker that BACKUP was taken of.

    Compares every byte with the manifest; then claims a higher epoch in ZooKeeper, which stops a former master and
    turns slaves to this one; then moves every partition's end beyond all offsets that can have been given out since.
    Messages after the back-up are lost. `metaq broker` starts DIR.

    Branches in doubt stay in doubt, and each goes on the ledger: its transaction may have ended after the back-up.
    Compare them by `metaq txn doctor` and with the database before clients and resolvers run again.

    An interrupted restoration leaves a DIR that no broker starts on; repeat it.

    \b
    Exit status: 0  restored; with --dry-run, it could be
                 1  refused or declined; nothing was changed
                 2  BACKUP is damaged, DIR is not empty, or another error

    \b
    metaq restore /backup/metaq-0-monday /var/lib/metaq/0 --zk 127.0.0.1:2181 --config broker.toml --dry-run
    """
    source = DirectoryStorage.open_for_reading(backup)
    manifest = read_manifest(source)
    require_empty(directory)
    config = load(config_path, data=directory, broker_id=manifest.broker_id, port=0, zookeeper=zk)
    if config.broker.cluster != manifest.cluster:
        raise ConfigError(
            f"{backup} is of cluster {manifest.cluster!r}, and the configuration of {config.broker.cluster!r}: give "
            f"--config the file that the broker has"
        )
    with read_state(backup) as (state, _):
        ends = {name: int(offset_range.end) for name, offset_range in state.offset_ranges.items()}
        branches = in_doubt(state)
    cluster_id = read_cluster_file(backup)
    with configured_session(config) as session:
        named = read_cluster_id(session) if session is not None else None
        found: VersionedReplication = VersionedReplication(None, None)
        position, stored = None, Stored()
        cluster = None
        if session is not None:
            if not dry_run:
                wait_for_dead_master(session, config)
            cluster, found = read_cluster(session, manifest.broker_id)
            position = read_position(session, manifest.broker_id).node
            stored = _stored(session, manifest.broker_id)
        epoch = manifest.epoch + 1 if session is None else next_epoch(found, manifest.epoch)
        skip = bytes_to_skip(manifest, wall_clock_ms(), position, epoch)
        facts = RestoreFacts(
            manifest,
            branches,
            cluster,
            position,
            list(beyond_end(stored, ends)),
            any("*" in name for name in config.topics),
            _archive_end(config.retention.archive),
            OtherId(cluster_id, named) if named not in (None, cluster_id) and cluster_id is not None else None,
        )
        findings = check_restore(facts)
        _print(facts, backup, skip, findings, as_json=as_json)
        check_consent(findings, "not restored", dry_run=dry_run, accept_loss=accept_loss)
        with Progress("copied", "MiB", manifest.bytes >> 20) as progress:
            if dry_run:
                copy_back(source, manifest, None, lambda done: progress.at(done >> 20))
                return
            if not yes:
                confirm(f"restore {backup} into {directory} as broker {manifest.broker_id}?")
            highest = dict[PartitionName, int]()
            for _, name, offset in stored:
                highest[name] = max(offset, highest.get(name, 0))
            configured = _configured(config)

            def claim(epoch: int) -> int:
                if session is None:
                    return epoch + 1
                if cluster_id is not None:
                    name_cluster(session, cluster_id)
                return claim_epoch(session, manifest.broker_id, found, epoch, f"a back-up of {manifest.source}")

            restored = restore(
                *(source, manifest, directory, claim, named or cluster_id),
                functools.partial(ends_after, configured=configured, stored=highest, skip=skip),
                lambda done: progress.at(done >> 20),
            )
        if session is not None:
            leave_in_sync(session, manifest.broker_id, restored.epoch)
    audit_offline(directory, "restore", backup=backup, broker=manifest.broker_id, epoch=restored.epoch)
    _print_restored(directory, manifest, restored)


def _print_restored(directory: Path, manifest: Manifest, restored: Restored) -> None:
    click.echo(
        f"restored {directory} broker={manifest.broker_id} epoch={restored.epoch} in_doubt={restored.in_doubt}",
        err=True,
    )
    if restored.unrecorded:
        click.echo(
            f"warning: the ledger had no room for {restored.unrecorded} branches in doubt: `metaq txn list --dir "
            f"{directory}` shows all",
            err=True,
        )


def _stored(session: ZooKeeperSession, broker_id: int) -> Stored:
    """Return every group's stored offsets in partitions of the broker."""
    return [
        (group.group, PartitionName(one.topic, one.partition.number), one.stored.offset)
        for group in list_groups(session)
        for one in group.progress
        if one.stored is not None and one.partition.broker_id == broker_id
    ]


def _configured(config: BrokerConfig) -> Sequence[PartitionName]:
    """Return the partitions of the topics that the configuration names: they may have begun after the back-up."""
    return [
        PartitionName(name, number)
        for name, topic in config.topics.items()
        if "*" not in name
        for number in range(topic.partitions)
    ]


def _archive_end(archive: str | None) -> ArchiveEnd | None:
    if archive is None:
        return None
    try:
        listed = read_archive(archive_place(archive))
    except StorageFailed as error:
        return ArchiveEnd(archive, unknown=str(error))
    return ArchiveEnd(archive, 0 if listed is None else listed.end)


def _print(facts: RestoreFacts, backup: Path, skip: int, findings: Sequence[CheckFinding], *, as_json: bool) -> None:
    if as_json:
        position: JournalPosition | None = facts.position
        report = {
            "backup": str(backup),
            **manifest_object(facts.manifest),
            "branches": list(facts.in_doubt),
            "skipped_bytes": skip,
            "reached": None if position is None else {"epoch": position.epoch, "end": position.end},
            "findings": [{"severity": one.severity.value, "text": one.text} for one in findings],
        }
        click.echo(json.dumps(report))
        return
    lines = manifest_lines(facts.manifest, backup)
    lines += [f"              {key}" for key in facts.in_doubt[:SHOWN_MAX]]
    if len(facts.in_doubt) > SHOWN_MAX:
        lines.append(f"              and {len(facts.in_doubt) - SHOWN_MAX} more: metaq txn list --dir {backup}")
    lines.append(f"  offsets   go on {skip} bytes further in each partition")
    lines += [f"{one.severity.value}: {one.text}" for one in findings]
    for line in lines:
        click.echo(printable(line))
