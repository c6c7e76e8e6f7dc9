"""`metaq checkpoint`: takes one now, on running brokers or in the directory of a stopped one."""

import contextlib
import sys
from pathlib import Path
from typing import Final

import click

from meta_broker.store.checkpoint_taking import checkpoint_stopped
from meta_broker.version import PRODUCT_VERSION
from meta_client.cli.output import print_rows
from meta_client.cli.security_options import security
from meta_client.cli.targets import known_url, targets, where_options
from meta_client.errors import NotSupported
from meta_client.logs.audit import audit_offline
from meta_client.net.calls import wait_result
from meta_client.net.connection import Connection
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.operations.text import tell
from meta_client.protocol.answers import CheckpointTaken, parse_checkpoint_taken
from meta_client.protocol.errors import MetaError, one_line
from meta_client.protocol.requests import TakeCheckpoint
from zk.tree.broker_url import BrokerUrl

ANSWER_TIMEOUT_S: Final = 120.0  # thousands of index files may have to be fsynced
SOME_REFUSED: Final = 1  # exit status: at least one broker took none
EXTENSION: Final = "checkpoint"
COLUMNS: Final = ("broker", "number", "lsn", "bytes_left")


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False))
@where_options
def checkpoint(directory: str | None, brokers: tuple[str, ...], zk: str, as_json: bool) -> None:
    """Take a checkpoint now: on every broker that is up, or in DIR, the data directory of one that does not run.

    Shows its number, the LSN below which it holds everything, and how many bytes of journal a start would replay. In
    DIR it recovers first, as a broker's start does: truncates a torn tail and rolls back active branches.

    Exit status: 1 if a broker could not take one; the others have.

    \b
    metaq checkpoint
    metaq checkpoint --broker 0 --json
    metaq checkpoint /var/lib/metaq/0
    """
    if directory is not None:
        if brokers:
            raise click.UsageError("give DIR or --broker, not both")
        rows = [_row(directory, checkpoint_stopped(Path(directory), PRODUCT_VERSION))]
        audit_offline(Path(directory), "checkpoint")
        print_rows(rows, COLUMNS, as_json=as_json)
        return
    rows, refused = [], False
    for name, url in targets(brokers, zk):
        try:
            rows.append(_row(name, _take_checkpoint(known_url(url))))
        except MetaError as error:
            refused = True
            tell(f"error: broker {name}: {one_line(error)}")
    if rows or not refused:
        print_rows(rows, COLUMNS, as_json=as_json, empty="no broker is up: start one, or name its directory")
    if refused or not rows:
        sys.exit(SOME_REFUSED)


def _take_checkpoint(url: BrokerUrl) -> CheckpointTaken:
    with contextlib.closing(Connection.open(url, CONNECT_TIMEOUT_S, security())) as connection:
        if EXTENSION not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
            raise NotSupported(f"{url} does not know `{EXTENSION}`: stop it with SIGTERM, which takes one")
        reply = connection.submit(TakeCheckpoint(next_opaque()))
        return parse_checkpoint_taken(wait_result(reply, ANSWER_TIMEOUT_S, f"checkpoint at {url}").message)


def _row(broker: str, taken: CheckpointTaken) -> dict[str, object]:
    return {"broker": broker, **taken._asdict()}
