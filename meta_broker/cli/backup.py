"""`metaq backup`: copies the directory of a broker, running or not, to a directory that `metaq restore` reads."""

import contextlib
import json
from pathlib import Path

import click

from journal.backup.backup import take_backup
from journal.backup.manifest import Manifest
from journal.state.copy_marks import UNFINISHED_BACKUP
from journal.state.wall_clock import wall_clock_ms
from journal.wal.storage import DirectoryStorage
from meta_broker.cluster.cluster_identity import read_cluster_file, save_cluster_file
from meta_broker.restoring.restoration import require_empty
from meta_broker.version import PRODUCT_VERSION
from meta_client.operations.progress import Progress
from meta_client.operations.text import printable, time_text


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", metavar="BACKUP", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def backup(directory: Path, target: Path, as_json: bool) -> None:
    """Copy DIR, the data directory of a master or a slave, to the new directory BACKUP.

    The broker may run: everything that was acknowledged when the command began is in the copy. The copy is fsynced,
    read back from the disk and checked, record by record; backup.json names its files, with their SHA-256. Groups'
    offsets are in ZooKeeper, and rows in their databases: back those up by their own means.

    Run it as the broker's user. Take it from a slave to spare the master's disk, and put it on another disk. An
    interrupted one is refused by every other command; repeat it, or delete it.

    \b
    metaq backup /var/lib/metaq/0 /backup/metaq-0-monday
    metaq restore /backup/metaq-0-monday /var/lib/metaq/0-new --zk 127.0.0.1:2181
    """
    if target.resolve().is_relative_to(directory.resolve()):
        raise click.UsageError(f"{target} is in {directory}: name a directory elsewhere, on another disk")
    require_empty(target, UNFINISHED_BACKUP)
    cluster_id = read_cluster_file(directory)
    source = DirectoryStorage.open_for_reading(directory)
    opened = contextlib.closing(DirectoryStorage.open_for_writing(target))
    with opened as storage, Progress("copied", "MiB") as progress:
        manifest = take_backup(
            source,
            storage,
            PRODUCT_VERSION,
            wall_clock_ms(),
            lambda total: progress.expect(total >> 20),
            lambda done: progress.at(done >> 20),
        )
        if cluster_id is not None:
            save_cluster_file(storage, cluster_id)
    if as_json:
        click.echo(json.dumps({"backup": str(target), **manifest_object(manifest)}))
    else:
        for line in manifest_lines(manifest, target):
            click.echo(printable(line))


def manifest_object(manifest: Manifest) -> dict[str, object]:
    """Return what scripts want to know of a back-up."""
    return {
        "cluster": manifest.cluster,
        "broker": manifest.broker_id,
        "time_ms": manifest.time_ms,
        "start": manifest.start,
        "end": manifest.end,
        "epoch": manifest.epoch,
        "records": manifest.records,
        "in_doubt": manifest.in_doubt,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
    }


def manifest_lines(manifest: Manifest, directory: Path) -> list[str]:
    return [
        f"back-up of broker {manifest.broker_id}, cluster {manifest.cluster}, taken {time_text(manifest.time_ms)}: "
        f"{directory}",
        f"  journal   LSN {manifest.start} to {manifest.end}, epoch {manifest.epoch}, {manifest.records} records",
        f"  in doubt  {manifest.in_doubt}",
        f"  files     {len(manifest.files)}, {manifest.bytes} bytes, verified",
    ]
