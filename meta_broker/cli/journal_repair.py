"""`metaq journal repair`: repairs a corrupt journal. The only command here that writes to a data directory."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from journal.errors import CorruptJournal, NoJournal, NotRepairable
from journal.repair.check import CheckReport, check
from journal.repair.offline import REPLICA_FILE, opened_segments
from journal.repair.repair import RepairPlan, apply_repair, plan_repair
from journal.repair.repair_source import RepairSource
from journal.repair.segment_repair import KEPT_PREFIX, BrokenSegment, find_broken_segments, repair_segments
from journal.state.checkpoint import Checkpoint
from journal.state.copy_marks import refuse_backup
from journal.state.inspection import read_checkpoints
from journal.wal.scan import EndVerdict
from journal.wal.segments import Segments, segment_base, segment_name
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.journal_text import damage_lines, damage_object
from meta_client.cli.output import json_option
from meta_client.logs.audit import audit_offline
from meta_client.operations.text import printable

UNSOUND = 1  # exit status: the journal is not sound
directory_type = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("directory", metavar="DIR", type=directory_type)
@click.option("--from", "source", metavar="COPY", type=directory_type, help="Take records from this copy of DIR.")
@click.option("--drop", is_flag=True, help="Drop what does not read back, and is not in COPY.")
@click.option("--yes", is_flag=True, help="Do it. Without it, only show what would be done.")
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
            broken = find_broken_segments(storage, copied, _known(storage))
            if broken and not (yes and (drop or copied)):
                click.echo(json.dumps(chain_object(broken, directory)) if as_json else "\n".join(chain_lines(broken)))
                click.get_current_context().exit(UNSOUND)
            if broken and copied is None:
                _refuse_drop(directory)
            repair_segments(storage, broken)
            if broken:
                audit_offline(directory, "journal-repair", copy=source, segments=",".join(one.name for one in broken))
            checkpoints = read_checkpoints(storage)
            segments = stack.enter_context(opened_segments(storage, writable=yes))
            copy = RepairSource(copied) if copied is not None else None
            plan = plan_repair(segments, checkpoints, copy)
        except NotRepairable as error:
            raise click.UsageError(str(error)) from error
        is_done = yes and not plan.is_empty and (drop or not plan.dropped)
        report = plan.report
        if is_done:
            if plan.dropped:
                _refuse_drop(directory)
            apply_repair(plan, segments, copy)
            segments.close()
            report = check(stack.enter_context(opened_segments(storage)), read_checkpoints(storage))
            lost = ",".join(f"{part.start}-{part.end}" for part in plan.dropped)
            outcome = "done" if report.is_sound else "not-sound"
            audit_offline(directory, "journal-repair", outcome, copy=source, dropped=lost or None)
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
    """Open the directory, and the segments of the copy."""
    storage = (DirectoryStorage.open_for_writing if for_writing else DirectoryStorage.open_for_reading)(directory)
    stack.callback(storage.close)
    if for_writing:
        refuse_backup(storage)
    if not any(segment_base(name) is not None for name in storage.names()):
        raise NoJournal(directory)
    if source is None:
        return storage, None
    if source.samefile(directory):
        raise click.UsageError(f"{source} is the damaged directory itself: name a copy of it")
    try:
        return storage, stack.enter_context(opened_segments(DirectoryStorage.open_for_reading(source)))
    except CorruptJournal as error:
        raise click.UsageError(f"the copy, too, is damaged: {error}") from error


def _refuse_drop(directory: Path) -> None:
    """Raise UsageError for a slave's directory: its master counts on records that nobody would miss there."""
    if (directory / REPLICA_FILE).exists():
        raise click.UsageError(
            f"{directory} is a slave's copy, and would count as whole without what is dropped: say --from with its "
            f"master's directory, or empty it, and the slave copies again"
        )


def _known(storage: DirectoryStorage) -> int:
    """Return the highest LSN that a checkpoint covers."""
    return max((one.lsn for one in read_checkpoints(storage).values() if isinstance(one, Checkpoint)), default=0)


def chain_lines(broken: list[BrokenSegment]) -> Iterator[str]:
    """Yield what keeps the segments from being read; other damage shows once they can be."""
    for segment in broken:
        if segment.is_missing:
            size = segment.header.size
            yield f"make: {segment.name}, which is missing, to be restored or dropped"
            yield f"unknown: up to {size} bytes of any partition, in {segment.name}"
        else:
            yield f"write: the header of {segment.name}, which does not read back"
    yield "nothing was changed: say --from COPY --yes or --drop --yes; what would be lost is known only after that"


def chain_object(broken: list[BrokenSegment], directory: Path) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "done": False,
        "verdict": EndVerdict.CORRUPT.value,
        "sound": False,
        "segments": [
            {"name": segment.name, "missing": segment.is_missing, "bytes": segment.header.size} for segment in broken
        ],
    }


def plan_lines(plan: RepairPlan, directory: Path, report: CheckReport, *, is_done: bool, drop: bool) -> Iterator[str]:
    """Yield the repair, done or planned, its cost, and its result."""
    if plan.is_empty:
        yield f"{directory}: nothing to repair: {report.verdict.value} up to LSN {report.end}"
        return
    for what, stretches in (("restore from the copy", plan.restored), ("drop", plan.dropped)):
        for part in stretches:
            yield f"{what}: LSN {part.start} to LSN {part.end}"
    for base in plan.recreated:
        yield f"recreate: {segment_name(base)}, which cannot be read completely"
    for number in plan.rewritten:
        yield f"rewrite: checkpoint.{number}, without what is dropped; the next start rebuilds every index"
    for number in plan.removed:
        yield f"remove: checkpoint.{number}"
    if plan.dropped:
        dropped = set(plan.affected)
        seen = [branch for branch in plan.damage.branches if str(branch.key) not in dropped]
        yield from damage_lines(replace(plan.damage, branches=seen))
        for branch in plan.affected:
            yield f"affected: branch {branch}: messages of it stood there; it is dropped whole"
    if is_done:
        yield f"repaired: {report.verdict.value} up to LSN {report.end}; kept: {directory}/{KEPT_PREFIX}*"
    elif plan.dropped and not drop:
        yield "nothing was changed: name a copy with --from, or say --drop --yes"
    else:
        yield "nothing was changed: say --yes to do it"


def plan_object(plan: RepairPlan, directory: Path, report: CheckReport, *, is_done: bool) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "done": is_done,
        "verdict": report.verdict.value,
        "sound": report.is_sound,
        "whole": report.verdict is EndVerdict.WHOLE,
        "end": report.end,
        "restored": [{"start": one.start, "end": one.end} for one in plan.restored],
        "dropped": [{"start": one.start, "end": one.end} for one in plan.dropped],
        "recreated": [segment_name(base) for base in plan.recreated],
        "checkpoints_rewritten": list(plan.rewritten),
        "checkpoints_removed": plan.removed,
        "affected": damage_object(plan.damage),
        "branches_dropped": plan.affected,
    }
