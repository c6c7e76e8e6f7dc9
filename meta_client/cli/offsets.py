"""`metaq offsets`: where a topic's partitions begin and end, and which offset belongs to a time."""

import datetime

import click

from meta_client.cli.options import connected, direct_option
from meta_client.cli.output import json_option, print_rows, refuse_away, zk_option
from meta_client.operations.option_types import MOMENT
from meta_client.operations.placement import away_brokers
from meta_client.operations.positions import ANSWER_TIMEOUT_S, Positions, Range
from zk.tree.nodes import Partition


@click.command()
@click.argument("topic")
@click.option("--at", type=MOMENT, help="Show the offset of this time, too. ISO 8601; local time.")
@zk_option
@direct_option
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
        found = Positions(client).ranges([(topic, partition) for partition in view.partitions], time_ms)
        away = away_brokers(client)
    rows = [_row(partition, found.get((topic, partition))) for partition in view.partitions]
    strangers = [str(row["partition"]) for row in rows if row["end"] is not None and row["at"] is None]
    if time_ms is not None and strangers:
        named = ", ".join(strangers)
        click.echo(f"warning: the brokers of {named} know nothing of times: they are no metaq brokers", err=True)
    columns = ["partition", "start", "end"] + ["at"] * (at is not None)
    print_rows(rows, columns, as_json=as_json)
    if any(row["end"] is None for row in rows):
        raise click.ClickException("some brokers did not answer, or are not up: their partitions have no end above")
    refuse_away(away)


def _row(partition: Partition, found: Range | None) -> dict[str, object]:
    row: dict[str, object] = {"partition": str(partition), "start": None, "end": None, "at": None}
    return row if found is None else row | found._asdict()
