"""Messages of a journal: what the fold publishes, message by message, from any segment on its own."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, In, StringStartsWith

from journal.records.codec import decode
from journal.records.header import Offset
from journal.records.record import NO_BRANCH, Commit, OffsetAssignment, PartitionName, PutRecord, TxPut
from journal.state.fold import apply
from journal.state.journal_state import JournalState
from journal.state.live_branch import LiveBranch
from journal.state.relocation import read_chunk, relocation_chunks
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.segments import segment_name
from meta_client.protocol.compression import Codec
from meta_client.protocol.id_layout import BIRTH_MS
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER_BYTES, encode_body, encode_frame, iter_frames
from meta_client.protocol.trace_context import with_traceparent
from spark_jobs.messages.journal import plan_tasks, read_task
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.selection import Condition, Selection
from tests.spark_jobs.journals import ORDERS, REFUNDS, Pen, body, flip, key, records_of, segment_bases, store_in

COLUMNS = ("topic", "partition", "offset", "id", "key", "payload", "xid", "error")
Row = dict[str, Any]


def read(
    path: Path | str, selection: Selection | None = None, columns: tuple[str, ...] = COLUMNS, *, fails: bool = True
) -> list[Row]:
    rows: list[Row] = []
    selection = selection or Selection()
    for task in plan_tasks([str(path)], selection):
        for batch in read_task(task, selection, columns, fail_on_data_loss=fails):
            rows += batch.to_pylist()
    return rows


def folded(path: Path) -> list[Row]:
    """The same rows by the fold of the broker itself, record by record."""
    state, found = JournalState(), records_of(path)
    rows: list[Row] = []
    for entry in found:
        record = decode(entry.header, entry.meta)
        for name, base, extent in apply(state, entry.header, record):
            holder = next(one for one in found if one.header.body_lsn <= extent.lsn < one.header.end)
            at = extent.lsn - holder.header.body_lsn
            xid = str(record.key) if isinstance(record, Commit) else None
            for offset, _, message in iter_frames(bytes(holder.body[at : at + extent.bytes]), base):
                said = (name.topic, f"3-{name.partition}", offset, message.id, message.attribute, message.payload)
                rows.append(dict(zip(COLUMNS, (*said, xid, None), strict=True)))
    return rows


def frames_of(random: Random) -> tuple[list[bytes], int, int]:
    """Messages of one length, of several, with an attribute, compressed."""
    frames = []
    size = random.randrange(200)
    for _ in range(count := random.randint(1, 6)):
        payload = random.randbytes(size if random.random() < 0.8 else random.randrange(300))
        flag, data = encode_body(
            payload * random.choice((1, 3)),
            random.choice((None, None, "", "a key", "schlüssel")),
            random.choice((None, None, Codec.ZSTD)),
        )
        frames.append(encode_frame(random.getrandbits(62), flag, data))
    return frames, sum(map(len, frames)), count


class Writer:
    """Plays every way in which messages come into a journal."""

    def __init__(self, store: JournalTransactionStore, random: Random) -> None:
        self._store = store
        self._random = random
        self._live: list[LiveBranch] = []
        self._number = random.getrandbits(40)

    def step(self) -> None:
        random, store = self._random, self._store
        verb = random.choice(("put", "put", "begin", "more", "more", "end", "move"))
        if verb == "put":
            store.put(self._name(), *frames_of(random))
        elif verb == "begin":
            self._number += 1
            self._live.append(store.begin(key(str(self._number))))
            self._put(self._live[-1])
        elif self._live:
            live = random.choice(self._live)
            if verb == "more":
                self._put(live)
            elif verb == "move":
                branch = next(each for each in store.state.branches.values() if each.key == live.key)
                for chunk in list(relocation_chunks(branch, store.journal.body_bytes_max))[: random.randint(1, 9)]:
                    store.relocate(chunk, read_chunk(store.journal, chunk))
            else:
                self._live.remove(live)
                if random.random() < 0.3:
                    store.rollback(live)
                    return
                if random.random() < 0.5:
                    store.prepare(live)
                    store.commit(live, one_phase=False)
                else:
                    store.commit(live, one_phase=True)

    def _put(self, live: LiveBranch) -> None:
        self._store.transactional_put(live, self._name(), *frames_of(self._random))

    def _name(self) -> PartitionName:
        return PartitionName(self._random.choice(("orders", "refunds")), self._random.randrange(2))


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_what_the_fold_publishes(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with store_in(tmp_path) as store:
        writer = Writer(store, random)
        for _ in range(400):
            writer.step()
    expected = folded(tmp_path)
    assert len(segment_bases(tmp_path)) > 5
    assert len({row["xid"] for row in expected}) > 10
    assert read(tmp_path) == expected
    # Fewer columns, and a filter by offset, say the same.
    middle = sorted(row["offset"] for row in expected)[len(expected) // 2]
    selection = Selection(starts={("orders", "3-1"): middle}, topics=frozenset({"orders"}))
    assert read(tmp_path, selection, ("offset", "payload")) == [
        {"offset": row["offset"], "payload": row["payload"]}
        for row in expected
        if row["topic"] == "orders" and (row["partition"] != "3-1" or row["offset"] >= middle)
    ]
    # So does a filter by transaction, which Spark applies once more.
    some = sorted({row["xid"] for row in expected if row["xid"] is not None})[::4]
    for pushed, wanted in (
        (EqualTo(("xid",), some[0]), some[:1]),
        (In(("xid",), (*some, None)), some),
        (StringStartsWith(("xid",), "no such"), []),
    ):
        selection = Selection()
        assert not selection.push_filter(pushed)
        assert read(tmp_path, selection) == [row for row in expected if row["xid"] in wanted]


def test_the_honest_journal(honest: Path) -> None:
    assert read(honest) == folded(honest)


@pytest.fixture
def pen(tmp_path: Path) -> Iterator[Pen]:
    with Pen(tmp_path / "journal") as pen:
        yield pen


def test_what_no_client_can_decode_is_a_row_with_a_reason(pen: Pen, tmp_path: Path) -> None:
    wrong = encode_frame(1 << 22, FLAG_ATTRIBUTE, b"\x00\x00\xff\xff<- no such attribute")
    unknown = encode_frame(2 << 22, 0x4D51 << 16 | 99 << 8, b"compressed by nobody")
    not_text = encode_frame(3 << 22, FLAG_ATTRIBUTE, b"\x00\x00\x00\x02\xff\xfeabc")
    frames = wrong + unknown + not_text
    pen.write(PutRecord(ORDERS, Offset(0), 3), frames)
    rows = read(tmp_path / "journal", columns=("offset", "timestamp", "key", "payload", "error"))
    assert [(row["key"], row["payload"]) for row in rows] == [
        (None, wrong[HEADER_BYTES:]),
        (None, unknown[HEADER_BYTES:]),
        ("\ufffd\ufffd", b"abc"),
    ]
    assert [row["error"] is None for row in rows] == [False, False, True]
    assert "attribute length 65535" in rows[0]["error"]
    assert "codec 99" in rows[1]["error"]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [BIRTH_MS + 1, BIRTH_MS + 2, BIRTH_MS + 3]


def test_a_trace_context_is_a_header_and_no_part_of_the_key(pen: Pen, tmp_path: Path) -> None:
    context = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    attributes = [None, "plain", with_traceparent("own", context), with_traceparent(None, context), "traceparent=x"]
    frames = [encode_frame(number, *encode_body(b"x", text)) for number, text in enumerate(attributes)]
    pen.write(PutRecord(ORDERS, Offset(0), len(frames)), b"".join(frames))
    rows = read(tmp_path / "journal", columns=("key", "headers"))
    assert [row["key"] for row in rows] == [None, "plain", "own", None, "traceparent=x"]
    header = [{"key": "traceparent", "value": context.encode()}]
    assert [row["headers"] for row in rows] == [[], [], header, header, []]
    assert [row["key"] for row in read(tmp_path / "journal", columns=("key",))] == [row["key"] for row in rows]
    assert [row["headers"] for row in read(tmp_path / "journal", columns=("headers",))][2] == header


@pytest.mark.parametrize("messages", [0, 1, 3, 2**32 - 1])
def test_a_wrong_number_of_messages_is_data_loss(pen: Pen, tmp_path: Path, messages: int) -> None:
    pen.write(PutRecord(ORDERS, Offset(0), messages), body(2))
    pen.put(ORDERS, 200, 2)
    with pytest.raises(DataLost, match="failOnDataLoss"):
        read(tmp_path / "journal")


def test_a_commit_without_its_messages_is_data_loss(pen: Pen, tmp_path: Path) -> None:
    pen.put(REFUNDS, 0, 1)
    branch = pen.tx_put("a", NO_BRANCH, ORDERS, 2)
    pen.commit("a", branch, (ORDERS, 0, 3))
    pen.put(REFUNDS, 100, 1)
    with pytest.raises(DataLost, match="that the COMMIT at LSN"):
        read(tmp_path / "journal")
    assert [row["offset"] for row in read(tmp_path / "journal", fails=False)] == [0, 100]
    # Nobody asked for that topic, or that transaction: nothing is missing.
    assert len(read(tmp_path / "journal", Selection(topics=frozenset({"refunds"})))) == 2
    assert read(tmp_path / "journal", Selection(conditions=[Condition("xid", EqualTo, ("another",))])) == []


def test_damage_is_data_loss(honest: Path) -> None:
    whole = read(honest)
    put = next(each for each in records_of(honest) if isinstance(decode(each.header, each.meta), PutRecord))
    flip(honest, put.header.body_lsn + 30)
    with pytest.raises(DataLost, match="do not read back: body checksum"):
        read(honest)
    assert read(honest, fails=False) == whole[:0] + [
        row for row in whole if row["offset"] >= 500 or row["topic"] != "orders"
    ]


def test_two_copies_of_one_broker_are_refused(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    for name in ("a", "b"):
        (tmp_path / "copies" / name).mkdir()
        (tmp_path / "copies" / name / segment_name(0)).write_bytes((honest / segment_name(0)).read_bytes())
    with pytest.raises(Exception, match="both of broker 3: read one copy"):
        read(tmp_path / "copies")
    once = len(plan_tasks([str(honest)], Selection()))
    assert {task.broker_id for task in plan_tasks([str(honest)], Selection())} == {3}
    assert len(plan_tasks([str(honest), f"{honest}/", str(honest.parent)], Selection())) == once, (
        "named twice, it is still one"
    )


def test_messages_longer_than_a_block(tmp_path: Path) -> None:
    large = b"".join(encode_frame(number, 0, bytes([number]) * 700_000) for number in range(3))
    with Pen(tmp_path, 1 << 23) as pen:
        pen.put(ORDERS, 0, 2)
        pen.write(PutRecord(ORDERS, Offset(200), 3), large)
        branch = pen.write(TxPut(key("large"), NO_BRANCH, ORDERS, 3), large).lsn
        pen.write(Commit(key("large"), branch, True, (OffsetAssignment(ORDERS, Offset(2_100_260), len(large), 3),)))
    assert read(tmp_path) == folded(tmp_path)
