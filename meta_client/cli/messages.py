"""`metaq produce` and `metaq consume`: messages from lines, and lines from messages."""

import base64
import csv
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import IO, Final

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, zk_option
from meta_client.cli.reading import GroupReading, read_topic_messages
from meta_client.consumer.batch import ReceivedMessage
from meta_client.protocol.compression import LABELS
from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import DATA_BYTES_MAX
from meta_client.protocol.requests import OFFSET_END

PROGRESS_S: Final = 1.0
STARTS: Final = {"earliest": 0, "latest": OFFSET_END, "stored": 0}


class Stopped(MetaError):
    """Sending ended early. The message says after how many, and why."""


class BadLine(MetaError):
    """A line of the input can't be a message. What came before it was sent."""


@click.command()
@click.argument("topic")
@zk_option
@click.option("--file", "source", type=click.File("rb"), default="-", help="Read lines from this file.  [default: -]")
@click.option("--attribute", metavar="TEXT", help="An attribute for every message.")
@click.option(
    "--key-column",
    type=click.IntRange(1),
    metavar="N",
    help="Lines are comma-separated values; the Nth is the message's attribute.",
)
@click.option("--compression", type=click.Choice(LABELS), help="Compress what gets smaller, if TOPIC allows it.")
def produce(
    topic: str, zk: str, source: IO[bytes], attribute: str | None, key_column: int | None, compression: str | None
) -> None:
    """Send each line of the input to TOPIC as a message; the line's end is not part of it.

    Every message is acknowledged before the next one is sent. When one fails, the error says how many were sent;
    everything before it is stored.

    \b
    seq 10 | metaq produce orders
    metaq produce orders --file orders.csv --key-column 1
    """
    if attribute is not None and key_column is not None:
        raise click.UsageError("--attribute and --key-column exclude each other")
    sent = 0
    started = reported = time.monotonic()
    with connected(zk) as client:
        producer = client.producer(compression=compression)
        try:
            producer.partitions(topic)  # who has no line to send is told of a wrong topic, too
            for line in _lines(source):
                producer.send(topic, line, attribute if key_column is None else _column(line, key_column, sent + 1))
                sent += 1
                if (now := time.monotonic()) - reported >= PROGRESS_S:
                    reported = now
                    click.echo(f"sent {sent} messages, {sent / (now - started):.0f}/s", err=True)
        except MetaError as error:
            raise Stopped(f"stopped after {sent} messages, which are stored: {error}") from error
    click.echo(f"sent {sent} messages to {topic} in {time.monotonic() - started:.1f} s", err=True)


@click.command()
@click.argument("topic")
@zk_option
@click.option("--group", metavar="NAME", help="Consume as a member of this group and store how far.")
@click.option(
    "--from",
    "start",
    type=click.Choice(sorted(STARTS)),
    help="Where to begin; stored: where the group stopped.  [default: earliest; stored with --group]",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("--follow", is_flag=True, help="Wait for more when there are no more, until Ctrl-C.")
@json_option
def consume(
    topic: str, zk: str, group: str | None, start: str | None, count: int | None, follow: bool, as_json: bool
) -> None:
    """Show the messages of TOPIC, a payload a line, and end when all are shown.

    Without --group every partition is read and nothing is left behind: no offset, no registration. With --group
    this is a member like any other, which gets its share of the partitions and commits what it has shown; --from
    then counts only where the group has stored nothing.

    \b
    metaq consume orders --count 10 --json
    metaq consume orders --group audit --follow
    """
    if start == "stored" and group is None:
        raise click.UsageError("--from stored needs --group: it is the group that stores offsets")
    offset = STARTS[start or "earliest"]
    with connected(zk) as client:
        if group is None:
            follow = follow or start == "latest"  # nothing is there yet that would be later than the latest
            for message in islice(read_topic_messages(client, topic, offset, follow=follow), count):
                _show(message, as_json=as_json)
        else:
            reading = GroupReading(client, topic, group, offset, lambda message: _show(message, as_json=as_json), count)
            reading.run(follow=follow)


def _show(message: ReceivedMessage, *, as_json: bool) -> None:
    """Print one message at once: somebody may be waiting for it. Raises OSError."""
    out = sys.stdout.buffer
    out.write((json.dumps(message_object(message)).encode() if as_json else message.payload) + b"\n")
    out.flush()


def message_object(message: ReceivedMessage) -> dict[str, object]:
    """A message for scripts; a payload that is not UTF-8 stands there in base64."""
    shown: dict[str, object] = {
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": message.offset,
        "message_id": message.message_id,
        "attribute": message.attribute,
    }
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    return shown


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: source.readline(DATA_BYTES_MAX + 2), b""), 1):
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(bare) > DATA_BYTES_MAX:
            raise BadLine(f"line {number} is longer than {DATA_BYTES_MAX} bytes, the most a message may have")
        yield bare


def _column(line: bytes, number: int, line_number: int) -> str:
    try:
        columns = next(csv.reader([line.decode()]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadLine(f"line {line_number} is not comma-separated UTF-8 ({error})") from error
    if len(columns) < number:
        raise BadLine(f"line {line_number} has {len(columns)} columns, --key-column is {number}")
    return columns[number - 1]
