"""Every kind of damage, made on purpose, makes exactly the right check fail."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from journal.records.header import RecordType
from journal.state.checkpoint import Checkpoint
from journal.wal.segments import segment_name
from spark_jobs.audit.report import AuditVerdict
from tests.spark_jobs.audit.reports import Audit, verdicts
from tests.spark_jobs.journals import (
    edit_checkpoint,
    flip,
    key,
    records_of,
    segment_bases,
)


def test_a_flipped_bit_in_a_header(honest: Path, audit: Audit) -> None:
    """The scan reports the flipped header; test_cli.py covers bodies, through the command."""
    header = records_of(honest)[5].header
    flip(honest, header.lsn + 20)
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"records"}, report.as_json()
    # The put's offsets are missing too, but the damage explains it.
    assert verdicts(report, AuditVerdict.UNPROVEN) == {"offsets"}, report.as_json()
    assert not report.holds
    assert "NOT proven whole (failed: records; unproven: offsets" in report.sentence
    assert report.check("records").counts == {"unreadable": 1}
    said = str(*report.check("records").examples)
    assert f"LSN {header.lsn} up to LSN {header.end}: " in said
    assert report.check("records").examples[0].lsn == header.lsn
    assert report.check("offsets").unproven == 1


def test_a_flipped_bit_in_a_prepare_leaves_its_branch_unproven(honest: Path, audit: Audit) -> None:
    flip(honest, next(e for e in records_of(honest) if e.header.record_type == RecordType.PREPARE).header.lsn + 8)
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"records"}
    assert verdicts(report, AuditVerdict.UNPROVEN) == {"outcomes", "checkpoints"}
    assert report.check("outcomes").counts == {"never prepared": 1}


def test_a_lost_segment(honest: Path, audit: Audit) -> None:
    bases = segment_bases(honest)
    (honest / segment_name(bases[1])).unlink()
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"records"}
    (example,) = report.check("records").examples
    assert str(example) == f"LSN {bases[1]} up to LSN {bases[2]}: a segment is missing"


def test_a_lost_tail_below_a_checkpoint(honest: Path, audit: Audit) -> None:
    """Records that were never there look like a torn tail; a checkpoint that knew them gives the loss away."""
    checkpoint_lsn = max(e.header.lsn for e in records_of(honest) if e.header.record_type == RecordType.CHECKPOINT)
    base = segment_bases(honest)[-1]
    position = checkpoint_lsn - base - 700  # a put or two before the newest checkpoint was taken
    with (honest / segment_name(base)).open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(position)
        file.write(bytes(size - position))
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"checkpoints"}
    assert report.check("checkpoints").counts == {"not reached": 1, "end differs": 1}


def _wrong_end(said: Checkpoint) -> Checkpoint:
    first, *others = said.partitions
    return msgspec.structs.replace(said, partitions=[msgspec.structs.replace(first, end=first.end + 100), *others])


def _left_out_partition(said: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(said, partitions=said.partitions[1:])


def _left_out_branch(said: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(said, branches=said.branches[1:])


def _wrong_state(said: Checkpoint) -> Checkpoint:
    first, *others = said.branches
    return msgspec.structs.replace(said, branches=[msgspec.structs.replace(first, state="IN_USE"), *others])


def _lost_run(said: Checkpoint) -> Checkpoint:
    first, *others = said.branches
    return msgspec.structs.replace(said, branches=[msgspec.structs.replace(first, extents=first.extents[1:]), *others])


def _invented_branch(said: Checkpoint) -> Checkpoint:
    invented = msgspec.structs.replace(said.branches[0], first_lsn=said.branches[0].first_lsn + 8)
    return msgspec.structs.replace(said, branches=[*said.branches, invented])


def _wrong_incarnation(said: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(said, incarnation=said.incarnation + 1)


def _beyond_the_journal(said: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(said, lsn=said.lsn + 8)


def test_checkpoints_that_say_otherwise(honest: Path, audit: Audit) -> None:
    """Each lie in a file of its own, beside the three honest ones: found in it and nowhere else."""
    edits: list[tuple[Callable[[Checkpoint], Checkpoint], str]] = [
        (_wrong_end, "end differs: checkpoint.4 says that orders-0 ends at offset "),
        (_left_out_partition, "end differs: checkpoint.5 says that orders-0 ends at offset none; by the records "),
        (_left_out_branch, f"branch left out: checkpoint.6 leaves out the live branch {key('doubtful')}, begun at "),
        (_wrong_state, "IN_USE with 9 messages in 900 bytes and 2 runs; by the records it is "),
        (_lost_run, "PREPARED with 5 messages in 500 bytes and 1 runs; by the records it is "),
        (_invented_branch, "which is not live by the records"),
        (_wrong_incarnation, "epoch differs: checkpoint.10 says epoch 1, incarnation 3; the records say 1, 2"),
        (_beyond_the_journal, "not reached: checkpoint.11 was taken at LSN "),
    ]
    for number, (edit, _) in enumerate(edits, start=4):
        edit_checkpoint(honest, 3, number, edit)
    file = honest / "checkpoint.2"
    file.write_bytes(file.read_bytes().replace(b'"orders"', b'"Orders"', 1))
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"checkpoints"}
    assert verdicts(report, AuditVerdict.UNPROVEN) == set()
    examples = {example.subject: f"{example.problem}: {example}" for example in report.check("checkpoints").examples}
    assert len(report.check("checkpoints").examples) == len(examples) == len(edits) + 1
    assert examples.pop("checkpoint.2") == "damaged: checkpoint.2 does not read back: checksum"
    for number, (_, text) in enumerate(edits, start=4):
        assert text in examples[f"checkpoint.{number}"]
