"""`metaq journal repair`: make a rotten journal sound again. The only command here that writes to a data directory."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from journal.chain_repair import KEPT_PREFIX, BrokenSegment, find_broken, mend_chain
from journal.check import Report, check
from journal.checkpoint import Checkpoint
from journal.errors import NoJournal, NotRepairable, RottenJournal
from journal.inspection import read_checkpoints
from journal.offline import opened_segments
from journal.repair import Plan, carry_out, plan_repair
from journal.repair_source import Copy
from journal.scan import Verdict
from journal.segments import Segments, segment_base, segment_name
from journal.storage import DirectoryStorage
from meta_client.cli.journal_text import damage_lines, damage_object, printable
from meta_client.cli.output import json_option

UNSOUND = 1  # exit status: the journal is not sound
directory_type = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("directory", metavar="DIR", type=directory_type)
@click.option("--from", "source", metavar="COPY", type=directory_type, help="Take records from this copy of DIR.")
@click.option("--drop", is_flag=True, help="Drop what does not read back, and is not in COPY.")
@click.option("--yes", is_flag=True, help="Do it. Without, only what would be done is shown.")
@json_option
def repair(directory: Path, source: Path | None, drop: bool, yes: bool, as_json: bool) -> None:
    """Repair the journal in DIR, whose broker is stopped.

    Shows what would be done, and every offset range and branch that would be lost. --yes does it: records are taken
    from COPY, a slave's directory or a backup, where it has them; what is left is dropped if --drop says so. Then
    the journal is checked. What is changed is kept in DIR, in files named before-repair.*.

    \b
    Exit status: 0  DIR is sound: it was, or it is now
                 1  DIR is not sound: --yes or --drop is missing
                 2  it cannot be repaired, or is in use; nothing was changed
    """
    with ExitStack() as stack:
        try:
            storage, copied = _storages(stack, directory, source, for_writing=yes)
            broken = find_broken(storage, copied, _known(storage))
            if broken and not (yes and (drop or copied)):
                click.echo(json.dumps(chain_object(broken, directory)) if as_json else "\n".join(chain_lines(broken)))
                click.get_current_context().exit(UNSOUND)
            mend_chain(storage, broken)
            checkpoints = read_checkpoints(storage)
            segments = stack.enter_context(opened_segments(storage, writable=yes))
            copy = Copy(copied) if copied is not None else None
            plan = plan_repair(segments, checkpoints, copy)
        except NotRepairable as error:
            raise click.UsageError(str(error)) from error
        is_done = yes and not plan.is_empty and (drop or not plan.dropped)
        report = plan.report
        if is_done:
            carry_out(plan, segments, copy)
            segments.close()
            report = check(stack.enter_context(opened_segments(storage)), read_checkpoints(storage))
    if as_json:
        click.echo(json.dumps(plan_object(plan, directory, report, is_done=is_done)))
    else:
        for line in plan_lines(plan, directory, report, is_done=is_done, drop=drop):
            click.echo(printable(line))
    if not report.is_sound:
        click.get_current_context().exit(UNSOUND)


def _storages(
    stack: ExitStack, directory: Path, source: Path | None, *, for_writing: bool
) -> tuple[DirectoryStorage, Segments | None]:
    """The directory, and the segments of the copy."""
    storage = (DirectoryStorage.open_for_writing if for_writing else DirectoryStorage.open_for_reading)(directory)
    stack.callback(storage.close)
    if not any(segment_base(name) is not None for name in storage.names()):
        raise NoJournal(directory)
    if source is None:
        return storage, None
    if source.samefile(directory):
        raise click.UsageError(f"{source} is the damaged directory itself: name a copy of it")
    try:
        return storage, stack.enter_context(opened_segments(DirectoryStorage.open_for_reading(source)))
    except RottenJournal as error:
        raise click.UsageError(f"the copy, too, is damaged: {error}") from error


def _known(storage: DirectoryStorage) -> int:
    """The highest LSN that a checkpoint knows."""
    return max((one.lsn for one in read_checkpoints(storage).values() if isinstance(one, Checkpoint)), default=0)


def chain_lines(broken: list[BrokenSegment]) -> Iterator[str]:
    """What keeps the segments from being read; what else there is shows once they can be."""
    for segment in broken:
        if segment.is_missing:
            yield f"make: {segment.name}, which is missing, to be restored or dropped"
        else:
            yield f"write: the header of {segment.name}, which does not read back"
    yield "nothing was changed: say --from COPY --yes or --drop --yes; what would be lost can be told only after that"


def chain_object(broken: list[BrokenSegment], directory: Path) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "done": False,
        "verdict": Verdict.ROTTEN.value,
        "sound": False,
        "segments": [{"name": segment.name, "missing": segment.is_missing} for segment in broken],
    }


def plan_lines(plan: Plan, directory: Path, report: Report, *, is_done: bool, drop: bool) -> Iterator[str]:
    """What is done, or would be; what it costs; and how it ended."""
    if plan.is_empty:
        yield f"{directory}: nothing to repair: {report.verdict.value} up to LSN {report.end}"
        return
    for what, stretches in (("restore from the copy", plan.restored), ("drop", plan.dropped)):
        for stretch in stretches:
            yield f"{what}: LSN {stretch.start} to LSN {stretch.end}"
    for base in plan.written_anew:
        yield f"write anew: {segment_name(base)}, which the disk does not give back whole"
    for number in plan.rewritten:
        yield f"rewrite: checkpoint.{number}, without what is dropped; the next start builds every index anew"
    for number in plan.removed:
        yield f"remove: checkpoint.{number}"
    if plan.dropped:
        yield from damage_lines(plan.damage)
        for branch in plan.hurt:
            yield f"affected: branch {branch}: messages of it stood there; it is dropped whole"
    if is_done:
        yield f"repaired: {report.verdict.value} up to LSN {report.end}; kept: {directory}/{KEPT_PREFIX}*"
    elif plan.dropped and not drop:
        yield "nothing was changed: name a copy with --from, or say --drop --yes"
    else:
        yield "nothing was changed: say --yes to do it"


def plan_object(plan: Plan, directory: Path, report: Report, *, is_done: bool) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "done": is_done,
        "verdict": report.verdict.value,
        "sound": report.is_sound,
        "whole": report.verdict is Verdict.WHOLE,
        "end": report.end,
        "restored": [{"start": one.start, "end": one.end} for one in plan.restored],
        "dropped": [{"start": one.start, "end": one.end} for one in plan.dropped],
        "written_anew": [segment_name(base) for base in plan.written_anew],
        "checkpoints_rewritten": list(plan.rewritten),
        "checkpoints_removed": plan.removed,
        "affected": damage_object(plan.damage),
        "branches_dropped": plan.hurt,
    }
