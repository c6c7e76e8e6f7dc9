"""`metaq promote`: makes a stopped slave the master."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click

from journal.state.wall_clock import wall_clock_ms
from meta_broker.cli.broker import broker_options, serve
from meta_broker.cli.former_master import check_consent, configured_session, wait_for_dead_master
from meta_broker.cli.promote_report import PromotionReport, report_lines, report_object
from meta_broker.cluster.cluster_identity import check_cluster, read_cluster_file
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError
from meta_broker.replication.promotion.candidates import Candidate, check_candidates
from meta_broker.replication.promotion.promotion import (
    compare_with_former,
    promote,
    query_slaves,
    read_cluster,
    read_replica,
    require_stopped_slave,
)
from meta_broker.replication.promotion.promotion_check import check_promotion
from meta_broker.replication.replica.slave_file import SlaveFile
from meta_client.cli.output import confirm
from meta_client.logs.audit import audit_offline
from meta_client.logs.setup import LogFormat, set_up_logs
from meta_client.operations.text import printable, tell
from zk.brokers.replication import VersionedReplication


@click.command(name="promote")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@broker_options
@click.option(
    "--former-dir",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the former master, if it can be read: the report is exact then.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done and lost; change nothing.")
@click.option("--accept-loss", is_flag=True, help="Promote it though acknowledged data may be lost.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--no-start", is_flag=True, help="Make DIR a master's, but start no broker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def promote_command(
    directory: Path,
    port: int,
    zk: str | None,
    config_path: Path | None,
    flush: str | None,
    admin_port: int | None,
    log_level: str,
    log_format: LogFormat,
    former_dir: Path | None,
    dry_run: bool,
    accept_loss: bool,
    yes: bool,
    no_start: bool,
    as_json: bool,
) -> None:
    """Make the slave in DIR, which is stopped, the master of its broker id, and run it like `metaq broker`.

    Shows what the slave has, whether the master is gone, whether another slave has more, and what may be lost; then
    asks. Refuses while a registered master answers; waits for the ZooKeeper session of one that does not. The former
    master finds the higher epoch when it is back, and becomes a slave of this one.

    Give --zk and --config as for the brokers. Without ZooKeeper, make sure yourself that the master is gone.

    \b
    Exit status: 0  promoted; with --dry-run, nothing acknowledged can be lost
                 1  refused or declined; nothing was changed
                 2  DIR can't be promoted: one line says why

    \b
    metaq promote /var/lib/metaq/0-slave --zk 127.0.0.1:2181 --dry-run
    metaq promote /var/lib/metaq/0-slave --zk 127.0.0.1:2181 --yes
    """
    set_up_logs(log_level, log_format)
    facts = require_stopped_slave(directory)
    config = load(
        config_path,
        data=directory,
        broker_id=facts.broker_id,
        port=port,
        zookeeper=zk,
        flush=flush,
        admin_port=admin_port,
    )  # before the claim, so that errors of the configuration come first
    if config.broker.cluster != facts.cluster:
        raise ConfigError(
            f"{directory} is of cluster {facts.cluster!r}, and the configuration of {config.broker.cluster!r}: give "
            f"--config the file that the master has"
        )
    with configured_session(config) as session:
        if session is not None:
            check_cluster(session, directory, read_cluster_file(directory))
        if session is not None and not dry_run:
            wait_for_dead_master(session, config)
        cluster, found = (
            read_cluster(session, facts.broker_id) if session is not None else (None, VersionedReplication(None, None))
        )
        status = read_replica(directory)
        compared = compare_with_former(former_dir, directory) if former_dir is not None else None
        findings, candidates = check_promotion(status, cluster, compared), dict[int, Candidate]()
        if cluster is not None:
            candidates = query_slaves(cluster, facts, config.security)
            findings += check_candidates(status, cluster, candidates, compared)
        report = PromotionReport(directory, status, cluster, compared, candidates, findings)
        _print(report, as_json=as_json)
        check_consent(report.findings, "not promoted", dry_run=dry_run, accept_loss=accept_loss)
        if dry_run:
            return
        if not yes:
            confirm(f"make {directory} the master of broker {facts.broker_id}?")
        with _told_if_interrupted(directory):
            epoch = promote(directory, status.facts, session, found)
    audit_offline(directory, "promote", broker=facts.broker_id, epoch=epoch)
    click.echo(f"promoted {directory} broker={facts.broker_id} epoch={epoch} in_doubt={len(status.in_doubt)}", err=True)
    if not no_start:
        serve(config)


@contextlib.contextmanager
def _told_if_interrupted(directory: Path) -> Iterator[None]:
    """Say what an interrupt leaves: the epoch may be claimed before the directory is a master's."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if SlaveFile(directory).read() is None:
            tell(f"interrupted: {directory} is a master's now, start it with `metaq broker`")
        else:
            tell(
                f"interrupted: {directory} is still a slave's, and its epoch may be claimed: run the same command again"
            )
        raise


def _print(report: PromotionReport, *, as_json: bool) -> None:
    lines = [json.dumps(report_object(report))] if as_json else report_lines(report, wall_clock_ms())
    for line in lines:
        click.echo(printable(line))  # operators' reasons and other slaves' texts may contain any characters
