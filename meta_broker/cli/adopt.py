"""`metaq adopt`: makes a stopped broker's directory one of the cluster that a ZooKeeper is of."""

import contextlib
from pathlib import Path

import click

from journal.wal.storage import DirectoryStorage
from meta_broker.cli.former_master import configured_session
from meta_broker.cluster.cluster_identity import read_cluster_file, save_cluster_file
from meta_broker.config.loading import load
from meta_client.cli.output import confirm
from meta_client.logs.audit import audit_offline
from zk.brokers.cluster_id import name_cluster, read_cluster_id


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--zk", required=True, help="ZooKeeper of the broker from now on, HOST:PORT[/chroot].")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the broker's broker.toml.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
def adopt(directory: Path, zk: str, config_path: Path | None, yes: bool) -> None:
    """Let DIR, a stopped broker's or slave's, start with a ZooKeeper that is not its cluster's, or lost its data.

    A ZooKeeper that names no cluster gets DIR's id: once is enough, and the other directories of the cluster start as
    they are. One that names another cluster stays as it is, and DIR becomes that one's: repeat it for each directory.

    Make sure that it is the right ZooKeeper, and DIR the newest directory of its broker: what a ZooKeeper does not
    have tells no copy or former master from it, and groups begin where their `start` says.

    \b
    Exit status: 0  DIR can be started with that ZooKeeper
                 1  declined; nothing was changed
                 2  an error

    \b
    metaq adopt /var/lib/metaq --zk 127.0.0.1:2181
    """
    config = load(config_path, data=directory, broker_id=0, port=0, zookeeper=zk)  # whose id it is plays no part
    locked = contextlib.closing(DirectoryStorage.open_for_writing(directory))
    with locked as storage, configured_session(config) as session:
        assert session is not None
        own, found = read_cluster_file(directory), read_cluster_id(session)
        if own is None:
            text = f"{directory} is of no cluster yet: it takes that of its first start; nothing was changed"
            click.echo(text, err=True)
            return
        if own != found:
            asked = f"{directory} of it, instead of {own}" if found else f"it {directory}'s, {own}"
            if not yes:
                confirm(f"ZooKeeper at {zk} is of {'cluster ' + found if found else 'no cluster'}: make {asked}?")
            cluster_id = name_cluster(session, own)
            if cluster_id != own:
                save_cluster_file(storage, cluster_id)
            audit_offline(directory, "adopt", cluster=cluster_id, former=own, zookeeper=zk)
    click.echo(f"{directory} can be started with ZooKeeper at {zk}", err=True)
