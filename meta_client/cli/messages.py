"""`metaq produce` and `metaq consume`: messages from lines, and lines from messages."""

import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final, Literal

import click

from meta_client.cli.formats import Render, message_object, parse_template
from meta_client.cli.group_reading import GroupReading
from meta_client.cli.inputs import (
    BadInput,
    Item,
    ReadItems,
    read_envelopes,
    read_lines,
    read_objects,
    read_records,
    read_whole,
)
from meta_client.cli.options import connected, direct_option, is_direct
from meta_client.cli.output import json_option, refuse_away, zk_option
from meta_client.cli.sending import Sending, SendReport, Stopped
from meta_client.client import Client
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import EARLIEST, LATEST, Position
from meta_client.logs.setup import LogFormat, log_options, set_up_logs
from meta_client.operations.option_types import PARTITION, STORED, Parsed, Seconds, parse_end, parse_start
from meta_client.operations.placement import away_brokers
from meta_client.operations.positions import PutTimes
from meta_client.operations.progress import Progress
from meta_client.operations.reading import Span, read_topic_messages
from meta_client.operations.text import tell
from meta_client.operations.waiting import Waiting
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.partitioners import ByAttribute
from meta_client.producer.results import SendResult
from meta_client.protocol.compression import LABELS
from meta_client.protocol.errors import MetaError
from zk.tree.nodes import INT64_MAX, Partition

TEMPLATE: Final = r"{payload}\n"
STDIN: Final = "-"


def _parse_template(text: str) -> Render:
    return parse_template(text, for_terminal=sys.stdout.isatty())


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(dir_okay=False, allow_dash=True))
@zk_option
@direct_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "whole"]),
    default="lines",
    help="One message from each line; each line of JSON as `metaq consume --json` prints it; or each whole FILE.",
)
@click.option("--attribute", metavar="TEXT", help="Give every message this attribute.")
@click.option(
    "--key-column",
    metavar="N|NAME",
    help="Read comma-separated values, and take the attribute from this column. NAME: as in the header.",
)
@click.option("--header", is_flag=True, help="Skip the first record of each FILE, with --key-column N.")
@click.option("--key-field", metavar="NAME", help="Read lines of JSON objects, and take the attribute from this field.")
@click.option("--partition", type=PARTITION, metavar="B-P", help="Send everything to this partition.")
@click.option("--by-key", is_flag=True, help="Keep messages of one attribute in one partition, in order.")
@click.option(
    "--compression", type=click.Choice(LABELS), help="Compress messages that get smaller, if TOPIC allows it."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.001),
    default=BatchingConfig().delivery_timeout_s,
    show_default=True,
    metavar="S",
    help="Give up on a message that no broker acknowledges within S seconds.",
)
@click.option("--dry-run", is_flag=True, help="Check whether everything can be sent; send nothing.")
@json_option
def produce(
    topic: str,
    files: tuple[str, ...],
    zk: str,
    form: str,
    attribute: str | None,
    key_column: str | None,
    header: bool,
    key_field: str | None,
    partition: Partition | None,
    by_key: bool,
    compression: str | None,
    timeout_s: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send each line of the FILEs, or of the standard input, to TOPIC as a message; its end is not part of it.

    Messages travel in batches, in their order, and each is acknowledged before the command ends. When one can't be
    sent, or an input is bad, that is told with file and line, and how many messages are stored: all before it, and,
    if a broker failed, perhaps some of those that were on their way. So it is when the output can't be written.
    --dry-run looks at the whole input first. With --json every message is told with its outcome, stored,
    not_replicated, unknown or not_stored, and with its place if it is stored.

    The exit status is 0 if everything is stored, 3 if all that was sent is on the master and some of it not yet
    replicated, which a broker in mode sync says when no slave is in sync, and 2 for everything else.

    \b
      seq 10 | metaq produce orders
      metaq produce orders monday.csv tuesday.csv --key-column Invoice --by-key
      metaq produce orders events.jsonl --key-field customer --dry-run
      metaq consume orders --json | metaq produce archive --format json
      metaq produce pictures --format whole --attribute lantern lantern.jpg
    """
    if by_key and partition is not None:
        raise click.UsageError("--by-key and --partition exclude each other")
    reader = _reader(form, attribute, key_column, key_field, has_header=header)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(zk, BatchingConfig(delivery_timeout_s=timeout_s)))
        producer = client.producer(compression=compression, partitioner=ByAttribute() if by_key else None)
        producer.partitions(topic)  # report a wrong topic even for an empty input
        progress = stack.enter_context(Progress("read" if dry_run else "sent", "messages", is_shared=as_json))
        if dry_run:
            for _ in _items(files, reader):
                progress.advance()
            click.echo(f"would send {progress.count} messages to {topic}; nothing was sent", err=True)
            return
        sending = Sending(producer, topic, partition, timeout_s, _show_outcome if as_json else lambda item, told: None)
        why = None
        try:
            for item in _items(files, reader):
                sending.send(item)
                progress.at(sending.stored)
                if sending.has_failed:
                    break
        except MetaError as error:
            why = str(error)
        except (KeyboardInterrupt, SystemExit) as error:  # SIGINT, SIGTERM
            try:
                sending.stop("interrupted" if isinstance(error, KeyboardInterrupt) else "terminated")
            except Stopped as told:
                tell(str(told))
            raise
        sending.stop(why)
    click.echo(f"sent {sending.stored} messages to {topic} in {progress.seconds:.1f} s", err=True)


def _reader(
    form: str, attribute: str | None, key_column: str | None, key_field: str | None, *, has_header: bool
) -> ReadItems:
    """Return the reader of the input format. Raises UsageError."""
    given = {"--attribute": attribute, "--key-column": key_column, "--key-field": key_field}
    if len(named := [name for name, value in given.items() if value is not None]) > 1:
        raise click.UsageError(f"{' and '.join(named)} exclude each other")
    if (key_column is not None or key_field is not None) and form != "lines":
        raise click.UsageError(f"{named[0]} says how lines are read: leave --format {form} out")
    if has_header and key_column is None:
        raise click.UsageError("--header goes with --key-column")
    if key_column is not None:
        if key_column.isdecimal() and int(key_column) < 1:
            raise click.UsageError("--key-column counts from 1")
        return partial(read_records, key=key_column, has_header=has_header)
    if key_field is not None:
        return partial(read_objects, field=key_field)
    return partial({"lines": read_lines, "json": read_envelopes, "whole": read_whole}[form], attribute=attribute)


def _items(files: tuple[str, ...], reader: ReadItems) -> Iterator[Item]:
    """Yield every message of the input. Raises BadInput."""
    for name in files or (STDIN,):
        source = "standard input" if name == STDIN else name
        try:
            with click.open_file(name, "rb") as stream:
                yield from reader(source, stream)
        except OSError as error:
            raise BadInput(f"{source}: {error.strerror or error}") from error


def _show_outcome(item: Item, told: SendResult | MetaError) -> None:
    line = {"source": item.source, "line": item.line, "outcome": SendReport.of(told)}
    if isinstance(told, SendResult):
        line |= told._asdict() | {"partition": str(told.partition)}
    else:
        line["error"] = str(told)
    click.echo(json.dumps(line))


@click.command()
@click.argument("topic")
@zk_option
@direct_option
@click.option("--group", metavar="NAME", help="Consume as a member of this group, and store its offsets.")
@click.option(
    "--from",
    "start",
    type=Parsed("start", parse_start),
    metavar="earliest|latest|stored|OFFSET|TIME",
    help="Begin here; stored: where the group stopped.  [default: earliest; stored with --group]",
)
@click.option("--until", type=Parsed("end", parse_end), metavar="OFFSET|TIME", help="End before this offset or time.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=PARTITION,
    metavar="B-P",
    help="Read this partition alone; may be given more than once.",
)
@click.option("--count", type=click.IntRange(1, INT64_MAX), metavar="N", help="End after N messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages at the end, until Ctrl-C.")
@click.option(
    "--format",
    "template",
    type=Parsed("template", _parse_template),
    metavar="TEXT",
    default=TEMPLATE,
    help="Template of a line, as described above.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics and health over HTTP on 127.0.0.1, with --group. 0: any free one. Without it: off.",
)
@log_options("warning")
@json_option
def consume(
    topic: str,
    zk: str,
    group: str | None,
    start: Position | Literal["stored"] | None,
    until: int | datetime | None,
    partitions: tuple[Partition, ...],
    count: int | None,
    follow: bool,
    template: Render,
    admin_port: int | None,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """Show the messages of TOPIC, a payload a line, and end when all that were there are shown.

    Without --group every partition is read, one after the other, and nothing is left behind: no offset, no
    registration. With --group this is a member like any other, which gets its share of the partitions and commits
    what it has shown; --from then counts only where the group has stored nothing. It waits, and says for what, while
    no broker offers TOPIC or other members own every partition; so does --follow. Without --follow it ends with status
    1, and names them, where partitions of its share can't be read for over half a minute.

    A time is ISO 8601, local unless it says otherwise, and means what was put then or later; a genuine broker knows
    nothing of times. An OFFSET is of one partition: name it with --partition.

    --format is a text with {topic}, {partition}, {offset}, {next}, {id}, {time}, {attribute}, {payload}, {hex},
    {base64}, {bytes}, and \\n, \\t, \\r, \\0; for a brace write two. On a terminal, control characters of a message are
    shown as escapes.

    \b
      metaq consume orders --count 10 --json
      metaq consume orders --from 2010-12-05T10:00 --until 2010-12-05T11:00
      metaq consume orders --partition 0-3 --from 4096 --format '{offset}\\t{attribute}\\t{payload}\\n'
      metaq consume orders --from latest --follow
      metaq consume orders --group audit --follow
    """
    if start == STORED and group is None:
        raise click.UsageError("--from stored needs --group: it is the group that stores offsets")
    if (isinstance(start, int) or isinstance(until, int)) and len(partitions) != 1:
        raise click.UsageError("an OFFSET is of one partition: name it with --partition")
    if follow and until is not None:
        raise click.UsageError("--follow never ends, --until does: leave one of them out")
    if group is not None and (partitions or until is not None):
        raise click.UsageError("--partition and --until are not for a --group, which reads what it is given")
    if group is not None and is_direct():
        raise click.UsageError("--group needs ZooKeeper, where its offsets and owners are: leave --broker out")
    if admin_port is not None and group is None:
        raise click.UsageError("--admin-port goes with --group: only a member has a lag")
    set_up_logs(log_level, log_format)
    begin: Position = EARLIEST if start is None or start == STORED else start
    with connected(zk) as client:
        times = PutTimes(client)
        out = sys.stdout.buffer

        def show(message: ReceivedMessage) -> None:
            """Print one message and flush. Raises OSError."""
            time_ms = times.of(message)
            if as_json:
                out.write(json.dumps(message_object(message, time_ms)).encode() + b"\n")
            else:
                out.write(template(message, time_ms))
            out.flush()

        if group is not None:
            with _admin(client, admin_port):
                GroupReading(client, topic, group, begin, show, count, Waiting(topic, zk, group)).run(follow=follow)
            return
        wanted = ", ".join(f"{topic}/{partition}" for partition in partitions) or topic
        follow = follow or (begin == LATEST and until is None)  # no existing message comes after the latest
        span = Span(begin, until, partitions)
        is_watched = sys.stderr.isatty() and not sys.stdout.isatty() and not follow
        shown = 0
        with Progress("read", "bytes") as progress:
            messages = read_topic_messages(
                client, topic, span, follow=follow, total=progress.expect, waiting=Waiting(wanted, zk)
            )
            for message in islice(messages, count):
                show(message)
                shown += 1
                if is_watched:
                    progress.advance(message.next_offset - message.offset)
        if shown != count and not partitions:
            refuse_away(away_brokers(client))


def _admin(client: Client, port: int | None) -> contextlib.AbstractContextManager[object]:
    """Serve metrics and health of *client* while the context lasts, if *port* is given. Raises CannotServe."""
    if port is None:
        return contextlib.nullcontext()
    from meta_client.cli.consumer_admin import serve_consumer_admin  # imported on first use

    server = serve_consumer_admin(client, port)
    click.echo(f"metrics and health: {server.url}", err=True)
    return server
