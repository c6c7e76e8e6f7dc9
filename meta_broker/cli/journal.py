"""`metaq journal`: reads a broker's log, offline or beside the running broker. Nothing in this file writes to it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from journal.errors import CorruptJournal, InvalidContent
from journal.records.header import RecordType
from journal.repair.check import check
from journal.repair.offline import opened_segments
from journal.state.checkpoint import Checkpoint
from journal.state.copy_marks import refuse_backup
from journal.state.initial_sync import refuse_unfinished_sync
from journal.state.inspection import RecordReader, describe, read_checkpoints, scanner_from
from journal.wal.scan import EndVerdict
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.journal_repair import repair
from meta_broker.cli.journal_text import (
    compressed_in,
    line_object,
    line_text,
    report_lines,
    report_object,
    torn_text,
    unreadable_object,
    unreadable_text,
)
from meta_broker.cli.journal_truncations import truncations
from meta_client.cli.output import json_option
from meta_client.operations.text import tell
from meta_client.protocol.integers import INT64_MAX

UNSOUND = 1  # exit status: the answer is no
KINDS = click.Choice([kind.name for kind in RecordType if kind is not RecordType.PAD], case_sensitive=False)

directory_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group()
def journal() -> None:
    """Read a broker's log: its data directory, or a copy, whether the broker runs or not; repair it when it is stopped.

    \b
    metaq journal check DIR            verify records and checkpoints
    metaq journal dump DIR             every record, a line each
    metaq journal dump DIR --kind COMMIT --json | jq .key
    metaq journal truncations DIR      tails cut off because the new master never had them
    metaq journal repair DIR           show what a repair would do, and what would be lost
    """


journal.add_command(repair)
journal.add_command(truncations)


@journal.command()
@directory_argument
@click.option(
    "--from", "start", type=click.IntRange(0, INT64_MAX), metavar="LSN", help="Begin at the first record from LSN on."
)
@click.option("--kind", "kinds", type=KINDS, multiple=True, help="Show records of this kind alone; may be given again.")
@click.option("--limit", type=click.IntRange(1, INT64_MAX), metavar="N", help="End after N records.")
@json_option
def dump(directory: Path, start: int | None, kinds: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Show the records of DIR, a line each.

    \b
    Columns: LSN, time, kind, epoch.incarnation, durable LSN, key, then per partition
    topic-partition@offset+bytes (messages). Without @offset the messages have none yet. zstd=3: so many are compressed.

    Ends with a line on stderr where the log is torn, exit status 0, or corrupt, exit status 1. Records behind the
    damage can be read with --from and the LSN in that line.
    """
    try:
        with opened(directory) as (segments, _, storage):
            try:
                reading = RecordReader(scanner_from(segments, start if start is not None else segments.start))
            except KeyError as error:
                raise click.UsageError(f"LSN {start} is not in {directory}: it ends at LSN {segments.end}") from error
            if show(reading, kinds, limit, as_json=as_json):
                return
            end, is_held = reading.end, storage.is_held()
    except CorruptJournal as error:  # in a segment header, or between segments: the journal cannot be read at all
        tell(f"error: {error}")
        click.get_current_context().exit(UNSOUND)
    if end.verdict is EndVerdict.TORN:
        click.echo(torn_text(end.end, end.reason, is_held=is_held), err=True)
    elif end.verdict is EndVerdict.CORRUPT:
        behind = (
            "no record behind it reads back"
            if end.next_valid_lsn is None
            else f"go on with --from {end.next_valid_lsn}"
        )
        click.echo(f"corrupt at LSN {end.end} ({end.reason}): {behind}", err=True)
        click.get_current_context().exit(UNSOUND)


def show(reading: RecordReader, kinds: tuple[str, ...], limit: int | None, *, as_json: bool) -> bool:
    """Print the records; return whether it ended because of *limit*."""
    shown = 0
    for entry in reading:
        line = describe(entry)
        if kinds and line.kind not in kinds:
            continue
        compressed = compressed_in(entry)
        click.echo(json.dumps(line_object(line, compressed)) if as_json else line_text(line, compressed))
        shown += 1
        if shown == limit:
            return True
    return False


@journal.command("check")
@directory_argument
@json_option
def check_command(directory: Path, as_json: bool) -> None:
    """Verify all of DIR.

    Reads every record, folds them, and compares each checkpoint file with the result. Reports what is damaged:
    LSNs, offsets of partitions, branches.

    \b
    Exit status: 0  whole, or with a torn tail, which the next start of the broker cuts
                 1  corrupt, a checkpoint that is damaged or disagrees, records that contradict one another
                 2  DIR is no journal, or a newer metaq's, or the beginning of a copy that was interrupted
    """
    # What such a copy has reads back as whole.
    refuse_backup(DirectoryStorage.open_for_reading(directory), is_read=True)
    refuse_unfinished_sync(DirectoryStorage.open_for_reading(directory))
    try:
        with opened(directory) as (segments, checkpoints, storage), progress(segments) as on_progress:
            report = check(segments, checkpoints, on_progress)
            is_held = storage.is_held()
    except CorruptJournal as error:  # in a segment header, or between segments: the journal cannot be read at all
        click.echo(json.dumps(unreadable_object(error, directory)) if as_json else unreadable_text(error))
        click.get_current_context().exit(UNSOUND)
    if as_json:
        click.echo(json.dumps(report_object(report, directory, is_held=is_held)))
    else:
        for text in report_lines(report, directory, is_held=is_held):
            click.echo(text)
    if not report.is_sound:
        click.get_current_context().exit(UNSOUND)


@contextmanager
def opened(directory: Path) -> Iterator[tuple[Segments, dict[int, Checkpoint | InvalidContent], DirectoryStorage]]:
    """Open the journal in *directory* for reading, after its checkpoints were read."""
    storage = DirectoryStorage.open_for_reading(directory)
    checkpoints = read_checkpoints(storage)
    with opened_segments(storage) as segments:
        yield segments, checkpoints, storage


@contextmanager
def progress(segments: Segments) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the LSN reached; it shows a bar on stderr, if that is a terminal."""
    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=segments.end - segments.start)
        yield lambda lsn: bar.update(task, completed=lsn - segments.start)
