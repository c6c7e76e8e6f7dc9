"""`metaq find`: messages by key, by id, or from a time on."""

import datetime
import json
import sys
from collections.abc import Iterator
from typing import Final

import click

from meta_client.cli.formats import message_object, time_text
from meta_client.cli.options import connected, direct_option
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.client import Client
from meta_client.consumer.routing import plan_routes
from meta_client.errors import ConnectionLost, NothingToRead, ReplyTimeout
from meta_client.metadata.topology import no_master
from meta_client.operations.option_types import MOMENT
from meta_client.operations.placement import away_brokers, brokers_of, partitions_of
from meta_client.operations.searching import Hit, Wanted, search_partition
from meta_client.operations.text import tell
from meta_client.protocol.errors import MetaError, one_line
from meta_client.protocol.integers import INT64_MAX, INT64_MIN

NOT_FOUND: Final = 1  # exit status
INCOMPLETE: Final = 2  # exit status: some partitions could not be searched, and may hold more
SHOWN_BYTES: Final = 40  # of a payload, in a table


@click.command()
@click.argument("topic")
@click.option("--key", metavar="TEXT", help="Find messages with this attribute.")
@click.option(
    "--id", "message_id", type=click.IntRange(INT64_MIN, INT64_MAX), metavar="ID", help="Find the message with this id."
)
@click.option("--since", type=MOMENT, help="Find messages put at this time or later. ISO 8601; local time.")
@click.option(
    "--limit",
    type=click.IntRange(1, INT64_MAX),
    default=20,
    show_default=True,
    metavar="N",
    help="End after N messages.",
)
@zk_option
@direct_option
@json_option
def find(
    topic: str,
    key: str | None,
    message_id: int | None,
    since: datetime.datetime | None,
    limit: int,
    zk: str,
    as_json: bool,
) -> None:
    """Find messages of TOPIC by their attribute, by their id, or from a time on.

    The broker searches, a partition after the other; for a key of a topic that has an index (`metaq topics alter TOPIC
    --index attribute`) it looks there. Messages of a transaction are found once it is committed; with --since they
    count as `metaq offsets --at` says. With --json the whole payload is shown, a message a line, as soon as found.

    Exit status: 0 found, 1 there is no such message, 2 a partition could not be searched, and may hold one more.

    \b
      metaq find orders --key 536365
      metaq find orders --id 2063597574291456 --json
      metaq find orders --since 2010-12-05T10:00 --key 536365 --limit 1
    """
    if key is None and message_id is None and since is None:
        raise click.UsageError("nothing to find: give --key, --id or --since")
    try:
        (key or "").encode()
    except UnicodeEncodeError as wrong:
        raise click.BadParameter(f"{key!r} has no UTF-8 form, as every key has", param_hint="'--key'") from wrong
    wanted = Wanted(key=key, message_id=message_id, since_ms=None if since is None else int(since.timestamp() * 1000))
    count = 0
    rows: list[dict[str, object]] = []
    failures: list[MetaError] = []
    with connected(zk) as client:
        for hit in _search(client, topic, wanted, limit, failures):
            count += 1
            if as_json:
                click.echo(json.dumps(message_object(hit.message, hit.time_ms)))
            else:
                rows.append(_row(hit))
    if rows:
        print_rows(rows, as_json=False)
    for error in failures:
        tell(f"warning: {one_line(error)}")
    if failures and count < (limit if message_id is None else 1):
        sys.exit(INCOMPLETE)
    if not count:
        click.echo("no such message", err=True)
        sys.exit(NOT_FOUND)


def _search(client: Client, topic: str, wanted: Wanted, limit: int, failures: list[MetaError]) -> Iterator[Hit]:
    """Yield each partition's matches, *limit* messages at most. Failed partitions are added to *failures*, the others
    of a broker that did not answer without being asked."""
    partitions = partitions_of(client, topic)
    if not partitions:
        raise NothingToRead(f"find in {topic}: no broker offers this topic: see `metaq topics`")
    routes = plan_routes(brokers_of(client))
    silent: set[int] = set()
    for partition in sorted(partitions):
        if partition.broker_id in silent:
            continue
        try:
            for hit in search_partition(client, topic, partition, routes.get(partition.broker_id), wanted, limit):
                yield hit
                limit -= 1
        except MetaError as error:
            failures.append(error)
            if isinstance(error, ConnectionLost | ReplyTimeout):
                silent.add(partition.broker_id)
        if not limit:
            return
    failures += map(no_master, away_brokers(client))


def _row(hit: Hit) -> dict[str, object]:
    message = hit.message
    shown = message.payload[:SHOWN_BYTES].decode(errors="replace")
    return {
        "partition": message.partition,
        "offset": message.offset,
        "message_id": message.message_id,
        "time": time_text(hit.time_ms),
        "attribute": message.attribute,
        "payload": shown + "..." * (len(message.payload) > SHOWN_BYTES),
    }
