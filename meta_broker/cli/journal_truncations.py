"""`metaq journal truncations`: lists the saved tails that were cut off a journal because its master never had them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from journal.errors import InvalidContent, StorageFailed
from journal.repair.tail import Tail, tail_lines, tail_of
from journal.state.saved_tail import DivergentTail, entries_of, list_saved_tails
from journal.wal.storage import DirectoryStorage
from meta_client.cli.output import json_option
from meta_client.operations.text import printable, time_text

UNSOUND = 1  # exit status: a file does not read back


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def truncations(directory: Path, as_json: bool) -> None:
    """List the tails cut off the journal in DIR: written by a former master, and not on the slave that replaced it.

    They are kept in files cut.*, which are never deleted.

    \b
    For each: LSNs, time, offsets by partition, and the branches prepared or ended there.
    Exit status: 0; 1 if a file is damaged.
    """
    storage = DirectoryStorage.open_for_reading(directory)
    is_sound, found = True, list_saved_tails(storage)
    if not found and not as_json:
        click.echo(f"nothing was cut off the journal in {directory}")
    for name, cut in found:
        try:
            if isinstance(cut, InvalidContent):
                raise StorageFailed(f"{directory}/{name}: {cut}")
            with contextlib.closing(storage.open(name, writable=False)) as file:
                tail = tail_of(entries_of(file.reader(), cut), cut.lsn)
            lines = json.dumps(_object(name, cut, tail)) if as_json else "\n".join(_lines(name, cut, tail))
        except StorageFailed as error:
            is_sound = False
            lines = json.dumps({"file": name, "error": str(error)}) if as_json else f"{name}: {error}"
        click.echo(lines)
    if not is_sound:
        click.get_current_context().exit(UNSOUND)


def _object(name: str, cut: DivergentTail, tail: Tail) -> dict[str, object]:
    return {
        "file": name,
        "lsn": cut.lsn,
        "end": cut.end,
        "epoch": cut.epoch,
        "incarnation": cut.incarnation,
        "time_ms": cut.time_ms,
        "tail": msgspec.to_builtins(tail),
    }


def _lines(name: str, cut: DivergentTail, tail: Tail) -> Iterator[str]:
    yield (
        f"{name}: LSN {cut.lsn} to {cut.end}, cut {time_text(cut.time_ms)}: "
        f"{tail.records} records of epoch {cut.epoch} and before, {tail.messages} messages"
    )
    for line in tail_lines(tail):
        yield f"  {printable(line)}"
