"""FORMAT.md against the code: every table's offsets and types, every worked example both ways."""

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from journal.records import codec, dead_letters, header, ledger, topic_changes
from journal.records.codec import READERS, decode, encode
from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import ALIGNMENT, HEADER_BYTES, Lsn, Offset, RecordHeader, RecordType, pack, unpack
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
    NO_BRANCH,
    CheckpointWritten,
    Commit,
    Decision,
    DroppedRecords,
    Epoch,
    Forget,
    Heuristic,
    OffsetAssignment,
    Pad,
    PartitionEnd,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import parse_key
from journal.state import saved_tail
from journal.state.checkpoint import Checkpoint, checkpoint_of, decode_checkpoint, encode_checkpoint
from journal.state.fold import apply
from journal.state.journal_state import JournalState
from journal.wal import segments
from journal.wal.segments import JournalIdentity, SegmentHeader

FORMAT = (Path(header.__file__).parents[1] / "FORMAT.md").read_text()
CODES = {"i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i"}
EPOCH, INCARNATION, TIME_MS = 1, 2, 1_700_000_000_000
SEGMENT_SIZE = 4096

ORDERS = PartitionName("orders", 0)
XA = parse_key("XID:1:6f2d31:6d71:uq")
LOCAL = parse_key("TX:s1:1")
BROKER: list[tuple[Record, bytes]] = [
    (Epoch(EPOCH, INCARNATION, "0.1.0"), b""),
    (PutRecord(ORDERS, Offset(0), 1), b"hello"),
    (TxPut(XA, NO_BRANCH, ORDERS, 2), b"in doubt"),
    (Prepare(XA, Lsn(288), 2, 8), b""),
    (TxPut(LOCAL, NO_BRANCH, ORDERS, 1), b"never"),
    (Rollback(LOCAL, Lsn(504), RollbackReason.TIMED_OUT), b""),
    (Commit(XA, Lsn(288), False, (OffsetAssignment(ORDERS, Offset(5), 8, 2),)), b""),
    (CheckpointWritten(1, Lsn(808)), b""),
    (Pad(), b""),
]
PRODUCER: list[tuple[Record, bytes]] = [
    (PutBatch(ORDERS, Offset(0), 2, 1_661_382_015_569_625_088, BatchSequence("shop-1", 7)), b"two frames"),
]
RUN_TIME: list[tuple[Record, bytes]] = [
    (
        TopicChange(
            topic="orders",
            state=TopicState.SET,
            section=0x35B2C6D1,
            partitions=8,
            accept_publish=True,
            accept_subscribe=True,
            closed=(2, 3),
        ),
        b"",
    ),
]
RELOCATED: list[tuple[Record, bytes]] = [
    (Relocate(XA, Lsn(288), ORDERS, 0, 0, (RelocatedExtent(Lsn(388), 8, 2, TIME_MS),)), b"in doubt"),
]
RELOCATED_AT = 1024
OPERATOR: list[tuple[Record, bytes]] = [
    (Heuristic(XA, Lsn(288), HeuristicDecision.COMMIT, TIME_MS, 2, 8, "ann@db1", "the order is in the database"), b""),
]
FOUND: list[tuple[Record, bytes]] = [
    (LedgerEntry(XA, Disagreement.MIXED, "ann@db1", "the row is there", "row: commit; broker 0: rolled back"), b""),
]
REPAIRED: list[tuple[Record, bytes]] = [(DroppedRecords((PartitionEnd(ORDERS, Offset(4000)),)), b"")]
COORDINATOR: list[tuple[Record, bytes]] = [(Decision(XA, "db=postgresql mq=0"), b""), (Forget(XA), b"")]
CONSUMER: list[tuple[Record, bytes]] = [
    (
        DeadLetter("orders", 0, 3, 100, 125, TIME_MS, 0, DeadLetterState.WAITING, "ValueError('no such customer')"),
        b"a frame",
    ),
    (DeadLetter("orders", 0, 3, 100, 125, TIME_MS, 1, DeadLetterState.DELIVERED, ""), b""),
]


@dataclass(frozen=True)
class Row:
    offset: int
    size: str
    type: str


def rows_under(heading: str) -> list[Row]:
    """The layout table under a heading: rows that begin with an offset."""
    section = re.split(r"^#+ ", FORMAT, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(heading + "\n")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [Row(int(row[0]), row[1], row[2]) for row in cells if row[0].isdigit() and len(row) == 5]


def struct_of(rows: list[Row]) -> str:
    """The struct format that the rows of fixed size add up to; each must begin where the one before ends."""
    text = "<"
    for row in rows:
        assert row.offset == struct.calcsize(text), f"a row at {row.offset} that should be at {struct.calcsize(text)}"
        if row.size:
            text += CODES.get(row.type, row.type)
            assert struct.calcsize(text) - row.offset == int(row.size)
    return text


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Segment header", segments._HEADER.format + "27sI"),
        ("Cut header", saved_tail._HEADER.format + "3sI"),
        ("Record header", header._HEADER.format),
        ("Branch", codec.BRANCH.format),
        ("PUT", codec.PUT.format),
        ("PUT_BATCH", codec.PUT.format + codec.SEQUENCE.format.removeprefix("<")),
        ("TX_PUT", codec.RUN.format),
        ("PREPARE", codec.PREPARE.format),
        ("COMMIT", codec.ASSIGNMENT_COUNT.format),
        ("Take", codec.ASSIGNMENT.format),
        ("ROLLBACK", "<B"),
        ("CARRY", codec.RELOCATE.format),
        ("Carried run", codec.RELOCATED.format),
        ("LEDGER", ledger.HEAD.format),
        ("TOPIC", topic_changes.HEAD.format),
        ("LOST", codec.END_COUNT.format),
        ("End", codec.END.format),
        ("EPOCH", codec.EPOCH.format),
        ("CHECKPOINT", codec.CHECKPOINT.format),
        ("DECISION", "<"),
        ("REFUSED", dead_letters.HEAD.format),
    ],
)
def test_a_table_adds_up_to_the_struct_of_the_code(heading: str, expected: str) -> None:
    rows = rows_under(heading)
    assert rows
    assert struct_of(rows) == expected


def test_headers_have_the_sizes_drawn() -> None:
    assert struct.calcsize(struct_of(rows_under("Segment header"))) == segments.SEGMENT_HEADER_BYTES
    assert struct.calcsize(struct_of(rows_under("Record header"))) == header.HEADER_BYTES
    (lsn,) = [row for row, name in zip(rows_under("Record header"), names_of_header(), strict=True) if name == "lsn"]
    assert lsn.offset == header.LSN_FIELD


def names_of_header() -> list[str]:
    """The field column of the record header's table."""
    text = FORMAT.split("### Record header\n")[1].split("###")[0]
    return [line.split("|")[4].strip() for line in text.splitlines() if re.match(r"\| \d", line)]


def test_the_kinds_are_those_of_the_code() -> None:
    text = FORMAT.split("### Kinds\n")[1].split("## ")[0]
    assert re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE) == [
        (str(int(kind)), kind.name) for kind in RecordType
    ]


def test_the_rollback_reasons_are_those_of_the_code() -> None:
    text = FORMAT.split("### ROLLBACK\n")[1].split("###")[0]
    drawn = re.findall(r"(\d) (\w+(?: out)?)", text.split("| reason |")[1])
    assert [(int(number), name.replace(" ", "_").upper()) for number, name in drawn] == [
        (int(reason), reason.name) for reason in RollbackReason
    ]


def examples() -> dict[tuple[str, int], bytes]:
    found = re.findall(r"```record (\w+) (\d+)\n(.*?)```", FORMAT, re.DOTALL)
    return {(kind, int(lsn)): bytes.fromhex(text) for kind, lsn, text in found}


def start_of(chain: list[tuple[Record, bytes]]) -> int:
    return RELOCATED_AT if chain is RELOCATED else segments.SEGMENT_HEADER_BYTES


def encoded(chain: list[tuple[Record, bytes]]) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Every record of *chain* as the code writes it, under its kind and LSN."""
    lsn = start_of(chain)
    for record, body in chain:
        kind, meta = encode(record)
        is_pad = kind is RecordType.PAD
        body_bytes = SEGMENT_SIZE - lsn - header.HEADER_BYTES if is_pad else len(body)
        raw = pack(kind, 0, meta, body_bytes, zlib.crc32(body), EPOCH, INCARNATION, lsn, lsn, TIME_MS) + body
        raw += bytes(-len(raw) % ALIGNMENT)
        yield (kind.name, lsn), raw
        lsn += len(raw)


def test_every_example_is_what_the_code_writes() -> None:
    chains = (BROKER, PRODUCER, RUN_TIME, RELOCATED, OPERATOR, FOUND, REPAIRED, COORDINATOR, CONSUMER)
    assert dict([each for chain in chains for each in encoded(chain)]) == examples()


@pytest.mark.parametrize(
    "chain", [BROKER, PRODUCER, RUN_TIME, RELOCATED, OPERATOR, FOUND, REPAIRED, COORDINATOR, CONSUMER]
)
def test_every_example_is_what_the_code_reads(chain: list[tuple[Record, bytes]]) -> None:
    names = {encode(record)[0].name for record, _ in chain}
    segment = bytearray(SEGMENT_SIZE)
    for (name, lsn), raw in examples().items():
        if name in names:
            segment[lsn : lsn + len(raw)] = raw
    view = memoryview(segment)
    lsn = start_of(chain)
    for record, body in chain:
        header = unpack(view, lsn, lsn)
        assert isinstance(header, RecordHeader)
        assert decode(header, view[lsn + HEADER_BYTES : header.body_lsn]) == record
        assert (
            header.record_type == RecordType.PAD or view[header.body_lsn : header.body_lsn + header.body_bytes] == body
        )
        assert (header.epoch, header.incarnation, header.time_ms, header.durable) == (1, 2, TIME_MS, lsn)
        lsn = header.end


def test_every_kind_that_is_written_has_an_example() -> None:
    assert {kind for kind, _ in examples()} == {RecordType(kind).name for kind in READERS}


def test_the_checkpoint_example_is_the_state_of_the_records_before_it() -> None:
    raw = FORMAT.split("```checkpoint\n")[1].split("```")[0].encode()
    state = JournalState(Lsn(segments.SEGMENT_HEADER_BYTES))
    for (record, body), ((_, lsn), _) in zip(BROKER, encoded(BROKER), strict=True):
        if lsn == 504:
            break
        kind, meta = encode(record)
        apply(state, RecordHeader(kind, 0, len(meta), len(body), 0, 1, 2, Lsn(lsn), Lsn(lsn), TIME_MS), record)
    checkpoint = checkpoint_of(state, {})
    assert encode_checkpoint(checkpoint) == raw
    decoded = decode_checkpoint(raw)
    assert isinstance(decoded, Checkpoint)
    assert decoded == checkpoint


def test_a_segment_header_is_what_the_table_says() -> None:
    header = SegmentHeader(JournalIdentity("orders", -3), Lsn(8192), SEGMENT_SIZE)
    raw = header.pack()
    fields = struct.unpack(struct_of(rows_under("Segment header")), raw)
    cluster = b"orders".ljust(64, b"\0")
    assert fields == (b"METAQJNL", 1, -3, 8192, 4096, 6, cluster, bytes(27), zlib.crc32(raw[:124]))
    assert SegmentHeader.unpack(raw, "here") == header
