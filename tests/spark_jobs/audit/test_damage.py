"""Every kind of damage, made on purpose, makes exactly the right check fail."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from journal.records.header import Offset, RecordType
from journal.records.record import NO_BRANCH, Prepare, PutRecord, Rollback, RollbackReason, TxPut
from journal.records.xid import LocalKey
from journal.state.checkpoint import Checkpoint
from journal.wal.segments import segment_name
from spark_jobs.audit.report import AuditReport, AuditVerdict
from tests.spark_jobs.audit.reports import Audit, verdicts
from tests.spark_jobs.journals import (
    LATE,
    ORDERS,
    REFUNDS,
    Pen,
    body,
    edit_checkpoint,
    flip,
    key,
    new_ids,
    records_of,
    segment_bases,
)


def only(report: AuditReport, check: str, problem: str, *, unproven: frozenset[str] = frozenset()) -> str:
    """Assert that *check* alone fails, with *problem* alone and once; returns what its example says."""
    assert verdicts(report, AuditVerdict.FAILS) == {check}, report.as_json()
    assert verdicts(report, AuditVerdict.UNPROVEN) == unproven, report.as_json()
    assert report.check(check).counts == {problem: 1}
    (example,) = report.check(check).examples
    assert not report.holds
    assert "NOT proven whole" in report.sentence
    assert check in report.sentence
    return str(example)


def test_a_flipped_bit_in_a_header(honest: Path, audit: Audit) -> None:
    """The scan reports the flipped header; test_cli.py covers bodies, through the command."""
    header = records_of(honest)[5].header
    flip(honest, header.lsn + 20)
    report = audit(honest)
    # The put's offsets are missing too, but the damage explains it.
    said = only(report, "records", "unreadable", unproven=frozenset({"offsets"}))
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


def test_broken_and_uncounted_messages(tmp_path: Path, audit: Audit) -> None:
    with Pen(tmp_path) as pen:
        pen.put(ORDERS, 0, 3)
        broken = bytearray(body(3, first_id=new_ids()))
        broken[100 + 20 + 7] ^= 1  # the data of the second message; the record's own checksum is taken after
        first = pen.write(PutRecord(ORDERS, Offset(300), 3), bytes(broken))
        second = pen.write(PutRecord(ORDERS, Offset(600), 4), body(3, first_id=new_ids()))
    report = audit(tmp_path)
    assert verdicts(report, AuditVerdict.FAILS) == {"frames"}
    assert report.check("frames").counts == {"broken frame": 1, "message count": 1}
    broken_frame, message_count = report.check("frames").examples
    assert str(broken_frame).startswith(
        f"the PUT at LSN {first.lsn} holds a broken message: frame 2, at byte 100 of the body: "
    )
    assert str(message_count) == f"the PUT at LSN {second.lsn} says 4 messages, its body holds 3"


def test_offsets_that_do_not_follow(tmp_path: Path, audit: Audit) -> None:
    with Pen(tmp_path) as pen:
        pen.put(ORDERS, 0, 3)
        pen.put(REFUNDS, 0, 3)
        pen.put(ORDERS, 400, 3)
        pen.put(REFUNDS, 200, 3)
        branch = pen.tx_put("a", NO_BRANCH, LATE, 2)
        pen.prepare("a", branch, 2)
        pen.commit("a", branch, (LATE, 100, 2))
    report = audit(tmp_path)
    assert verdicts(report, AuditVerdict.FAILS) == {"offsets"}
    assert report.check("offsets").counts == {"gap": 2, "overlap": 1}
    assert [str(example) for example in report.check("offsets").examples] == [
        "orders-0 offsets [300, 400) are lost: no record holds them",
        "refunds-1 offsets [200, 300) are doubled: an earlier record took them",
        "late-2 offsets [0, 100) are lost: no record holds them",
    ]


def test_a_doubled_commit(tmp_path: Path, audit: Audit) -> None:
    with Pen(tmp_path) as pen:
        branch = pen.tx_put("a", NO_BRANCH, ORDERS, 2)
        pen.prepare("a", branch, 2)
        pen.commit("a", branch, (ORDERS, 0, 2))
        again = pen.commit("a", branch, (ORDERS, 200, 2)).lsn  # the same two messages, a second time
    said = only(audit(tmp_path), "outcomes", "decided twice")
    assert said.startswith(f"{key('a')}, begun at LSN {branch} is decided 2 times: 2 COMMIT and 0 ROLLBACK")
    assert said.endswith(f"the last at LSN {again}")


def test_a_commit_that_takes_less_than_was_put(tmp_path: Path, audit: Audit) -> None:
    with Pen(tmp_path) as pen:
        branch = pen.tx_put("a", NO_BRANCH, ORDERS, 2)
        pen.tx_put("a", branch, REFUNDS, 1)
        pen.prepare("a", branch, 3)
        pen.commit("a", branch, (ORDERS, 0, 1), (REFUNDS, 0, 1))
        pen.put(ORDERS, 100, 1)
    said = only(audit(tmp_path), "outcomes", "assignment differs")
    assert "puts 2 messages in 200 bytes into orders-0; its COMMIT takes 1 in 100" in said


def test_lives_that_no_branch_may_lead(tmp_path: Path, audit: Audit) -> None:
    with Pen(tmp_path) as pen:
        late = pen.tx_put("late", NO_BRANCH, ORDERS, 1)
        pen.prepare("late", late, 1)
        pen.tx_put("late", late, ORDERS, 1)
        ghost = pen.put(REFUNDS, 0, 1).lsn
        pen.write(Rollback(key("ghost"), ghost, RollbackReason.ASKED))
        hasty = pen.tx_put("hasty", NO_BRANCH, REFUNDS, 1)
        pen.commit("hasty", hasty, (REFUNDS, 100, 1))
        undead = pen.tx_put("undead", NO_BRANCH, ORDERS, 1)
        pen.write(Rollback(key("undead"), undead, RollbackReason.ASKED))
        pen.tx_put("undead", undead, ORDERS, 1)
        liar = pen.tx_put("liar", NO_BRANCH, ORDERS, 1)
        pen.prepare("liar", liar, 2)
        keen = pen.tx_put("keen", NO_BRANCH, ORDERS, 1)
        pen.prepare("keen", keen, 1)
        pen.prepare("keen", keen, 1)
        dropped = pen.tx_put("dropped", NO_BRANCH, ORDERS, 1)
        pen.prepare("dropped", dropped, 1)
        pen.write(Rollback(key("dropped"), dropped, RollbackReason.PRESUMED))
        local = LocalKey("session", 1)
        local_lsn = pen.write(TxPut(local, NO_BRANCH, ORDERS, 1), body(1)).lsn
        pen.write(Prepare(local, local_lsn, 1, 100))
        jekyll = pen.tx_put("jekyll", NO_BRANCH, ORDERS, 1)
        pen.write(Rollback(key("hyde"), jekyll, RollbackReason.ASKED))
    report = audit(tmp_path)
    assert verdicts(report, AuditVerdict.FAILS) == {"outcomes"}, report.as_json()
    assert report.check("outcomes").counts == dict.fromkeys(
        [
            "put after PREPARE",
            "never begun",
            "never prepared",
            "alive after its outcome",
            "broken promise",
            "prepared twice",
            "promise dropped",
            "local prepared",
            "two keys",
        ],
        1,
    )
    said = {example.problem: str(example) for example in report.check("outcomes").examples}
    assert str(key("dropped")) in said["promise dropped"]
    assert str(local) in said["local prepared"]
    assert str(key("late")) in said["put after PREPARE"]
    assert str(key("ghost")) in said["never begun"]
    assert str(key("hasty")) in said["never prepared"]


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


def test_a_checkpoint_beyond_the_journal(honest: Path, audit: Audit) -> None:
    edit_checkpoint(honest, 3, 3, lambda said: msgspec.structs.replace(said, lsn=said.lsn + 8))
    said = only(audit(honest), "checkpoints", "not reached")
    assert said.startswith("checkpoint.3 was taken at LSN ")
