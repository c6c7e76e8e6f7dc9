"""`metaq offsets`: where a topic's partitions begin and end, and which offset belongs to a time."""

import datetime

import click

from meta_client.calls import wait_result
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.client import Client
from meta_client.connection import Connection
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import OffsetRange, parse_offset, parse_offset_range
from meta_client.protocol.errors import MetaError, NotFound
from meta_client.protocol.requests import OFFSET_END, OffsetQuery, Offsets
from zk.nodes import Partition

ANSWER_TIMEOUT_S = 5.0
GROUP = "metaq-cli"


class Moment(click.ParamType[datetime.datetime]):
    """A point in time, in ISO 8601; local time unless it says otherwise."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime.datetime:
        try:
            return datetime.datetime.fromisoformat(str(value)).astimezone()
        except ValueError:
            text = f"{value} is no time: write it like 2010-12-05T10:00, or 2010-12-05T10:00+00:00"
            self.fail(text, param, ctx)


@click.command()
@click.argument("topic")
@click.option("--at", type=Moment(), help="Show the offset that belongs to this time, too. ISO 8601; local time.")
@zk_option
@json_option
def offsets(topic: str, at: datetime.datetime | None, zk: str, as_json: bool) -> None:
    """Show where the partitions of TOPIC begin and end.

    With --at, also the first offset of what was put at that time or later: the end, if nothing was. Messages of a
    transaction count from when it committed, at the earliest, where something else was put before that.

    \b
      metaq offsets orders
      metaq offsets orders --at 2010-12-05T10:00
      metaq offsets orders --at 2010-12-05T10:00:00+08:00 --json
    """
    time_ms = None if at is None else int(at.timestamp() * 1000)
    with connected(zk) as client:
        view = client.topology.view(topic, ANSWER_TIMEOUT_S)
        if not view.partitions:
            raise click.ClickException(f"no broker offers topic {topic}: see `metaq topics`")
        rows = [_row(client, topic, partition, time_ms) for partition in view.partitions]
    columns = ["partition", "start", "end"] + ["at"] * (at is not None)
    print_rows(columns, rows, as_json=as_json, empty="")
    if any(row["end"] is None for row in rows):
        raise click.ClickException("some brokers did not answer: see above")


def _row(client: Client, topic: str, partition: Partition, time_ms: int | None) -> dict[str, object]:
    found = None
    try:
        url = client.topology.view(topic, ANSWER_TIMEOUT_S).urls.get(partition.broker_id)
        if url is None:
            click.echo(f"warning: broker {partition.broker_id} of partition {partition} is not up", err=True)
        else:
            found = _ask(client.connections.get(url, CONNECT_TIMEOUT_S), topic, partition, time_ms)
    except MetaError as error:
        click.echo(f"warning: partition {partition} is missing: {error}", err=True)
    row: dict[str, object] = {"partition": str(partition), "start": None, "end": None, "at": None}
    return row if found is None else row | {"start": found[0], "end": found[1], "at": found[2]}


def ask_range(connection: Connection, topic: str, partition: Partition, time_ms: int) -> OffsetRange | None:
    """Where the partition begins, ends, and was at *time_ms*; None: the broker knows nothing of times. Raises
    MetaError."""
    if "offsets" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
        return None
    request = Offsets(topic, partition.number, time_ms, next_opaque())
    reply = connection.submit(request)
    return parse_offset_range(wait_result(reply, ANSWER_TIMEOUT_S, f"offsets {topic}/{partition}").message)


def _ask(
    connection: Connection, topic: str, partition: Partition, time_ms: int | None
) -> OffsetRange | tuple[int, int, None]:
    what = f"offsets {topic}/{partition}"
    if (found := ask_range(connection, topic, partition, 0 if time_ms is None else time_ms)) is not None:
        return found
    if time_ms is not None:
        click.echo(f"warning: the broker of {partition} knows nothing of times: it is no metaq broker", err=True)
    try:
        start, end = (
            parse_offset(
                wait_result(
                    connection.submit(OffsetQuery(topic, GROUP, partition.number, offset, next_opaque())),
                    ANSWER_TIMEOUT_S,
                    what,
                ).message
            )
            for offset in (0, OFFSET_END)
        )
    except NotFound:
        return 0, 0, None  # nothing was ever put there
    return start, end, None
