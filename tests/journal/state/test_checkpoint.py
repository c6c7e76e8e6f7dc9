"""Checkpoint files: complete, checked whole, replaceable, and never trusted."""

import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from journal.errors import CorruptJournal, InvalidContent
from journal.records.heuristics import HeuristicDecision, HeuristicEnd
from journal.records.ledger import Disagreement, Finding
from journal.records.record import RollbackReason
from journal.records.topic_changes import TopicChange, TopicState
from journal.state.checkpoint import (
    CHECKPOINTS_KEPT,
    BranchEntry,
    Checkpoint,
    IndexFileEntry,
    PartitionEntry,
    WriterEpochEntry,
    checkpoint_numbers,
    checkpoint_of,
    decode_checkpoint,
    encode_checkpoint,
    read_newest,
    state_of,
    write_checkpoint,
)
from journal.state.extent_entries import ExtentEntry
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.segments import segment_name
from journal.wal.storage import DirectoryStorage
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa

FULL = Checkpoint(
    format=1,
    lsn=9000,
    epoch=1,
    incarnation=3,
    time_ms=1_700_000_000_000,
    partitions=[
        PartitionEntry(topic="orders", partition=0, start=0, end=500, index=IndexFileEntry(entries=2, crc=7)),
        PartitionEntry(topic="stock", partition=3, start=100, end=100),
    ],
    branches=[
        BranchEntry(
            key=str(xa("order-1")),
            state="PREPARED",
            first_lsn=300,
            began_ms=5,
            prepared_ms=6,
            extents=(ExtentEntry("orders", 0, 400, 10, 1, 5), ExtentEntry("stock", 3, 500, 20, 2, 5)),
        ),
    ],
    epoch_history=[WriterEpochEntry(1, 2, 128), WriterEpochEntry(1, 3, 700)],
)


def test_a_checkpoint_reads_back() -> None:
    assert decode_checkpoint(encode_checkpoint(FULL)) == FULL
    assert checkpoint_of(state_of(FULL), {ORDERS: IndexFileEntry(entries=2, crc=7)}) == FULL


def test_every_byte_of_a_checkpoint_file_counts() -> None:
    raw = encode_checkpoint(FULL)
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0x01
        with pytest.raises(InvalidContent):
            decode_checkpoint(bytes(damaged))
    for size in range(len(raw) - 1):  # the last line feed alone says nothing
        with pytest.raises(InvalidContent):
            decode_checkpoint(raw[:size])


def signed(body: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(body) + body + b"\n"


def changed(**members: Any) -> bytes:
    return signed(msgspec.json.encode(msgspec.to_builtins(FULL) | members))


PARTITION = msgspec.to_builtins(FULL.partitions[0])
BRANCH = msgspec.to_builtins(FULL.branches[0])
TOPIC = msgspec.to_builtins(TopicChange(topic="orders", state=TopicState.DELETED))
HEURISTIC = msgspec.to_builtins(
    HeuristicEnd(
        key=str(xa("order-2")),
        decision=HeuristicDecision.COMMIT,
        who="ada",
        why="it was late",
        time_ms=7,
        prepared_ms=6,
        messages=1,
        bytes=10,
    )
)
FINDING = msgspec.to_builtins(
    Finding(
        key=str(xa("order-3")),
        disagreement=Disagreement.MIXED,
        who="ada",
        why="both were asked",
        evidence="-",
        time_ms=8,
    )
)


def test_the_entries_that_are_changed_below_are_valid() -> None:
    raw = changed(topics=[TOPIC], heuristics=[HEURISTIC], ledger=[FINDING], branches=[BRANCH | {"decision": 1}])
    state = state_of(decode_checkpoint(raw))
    assert (len(state.topics), len(state.heuristics), len(state.ledger)) == (1, 1, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        signed(b""),
        signed(b"{"),
        signed(b"[" * 100_000),
        signed(b'{"format":1,"lsn":"\xff"}'),
        signed(b'{"partitions":[{"x":' + b"[" * 100_000),
        changed(format=2),
        changed(lsn=-1),
        changed(surplus=1),
        changed(partitions=[PARTITION, PARTITION]),
        changed(partitions=[PARTITION | {"start": 501}]),
        changed(partitions=[PARTITION | {"end": -1}]),
        changed(branches=[BRANCH, BRANCH]),
        changed(branches=[BRANCH | {"runs": []}]),
        changed(branches=[BRANCH | {"state": "FINISHED"}]),
        changed(branches=[BRANCH | {"key": "TX:no number"}]),
        changed(branches=[BRANCH | {"runs": [["orders", 0, 400, -1, 1, 5]]}]),
        changed(branches=[BRANCH | {"decision": 3}]),
        changed(branches=[BRANCH | {"decision": 1, "state": "IN_USE"}]),
        changed(topics=[TOPIC, TOPIC]),
        changed(heuristics=[HEURISTIC | {"key": "TX:7:1"}]),
        changed(heuristics=[HEURISTIC, HEURISTIC]),
        changed(ledger=[FINDING | {"key": "TX:7:1"}]),
        changed(ledger=[FINDING, FINDING]),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused_with_a_reason(raw: bytes) -> None:
    with pytest.raises(InvalidContent, match=r"."):
        decode_checkpoint(raw)


def found(storage: FaultyStorage) -> tuple[int, Checkpoint | None, list[str]]:
    number, content, damaged = read_newest(storage)
    return number, content[0] if content else None, damaged


@pytest.mark.scenario("U25")
def test_the_newest_three_are_kept() -> None:
    storage = FaultyStorage(Random(0))
    for number in range(1, 6):
        write_checkpoint(storage, number, FULL)
    assert checkpoint_numbers(storage) == [3, 4, 5]
    assert CHECKPOINTS_KEPT == 3


def test_numbers_are_numbers_and_nothing_else_is_a_checkpoint() -> None:
    storage = FaultyStorage(Random(0))
    for name in ("checkpoint.9", "checkpoint.10", "checkpoint.11.tmp", "checkpoint.", "checkpoint.x", "xcheckpoint.1"):
        storage.replace(name, encode_checkpoint(FULL))
    assert checkpoint_numbers(storage) == [9, 10]
    assert found(storage) == (10, FULL, [])


@pytest.mark.scenario("U25")
def test_a_damaged_one_is_passed_over_and_named() -> None:
    storage = FaultyStorage(Random(0))
    write_checkpoint(storage, 1, FULL)
    for number in (2, 3):
        storage.replace(f"checkpoint.{number}", b"rubbish")
    assert found(storage) == (1, FULL, ["memory/checkpoint.3: checksum", "memory/checkpoint.2: checksum"])


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace, which has a read fail")
def test_one_that_the_disk_does_not_give_back_is_passed_over_and_named(tmp_path: Path) -> None:
    """A process whose reads of the newest file answer EIO opens the journal with the one before it."""
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage)
    for _ in range(2):
        store.put(ORDERS, [b"p" * 300], 300, 1)
        checkpoint(store)
    store.close()
    storage.close()
    failing = [*("strace", "-f", "-qq", "-o", "/dev/null"), *("-P", str(tmp_path / "checkpoint.2"))]
    failing += ["-e", "inject=read:error=EIO", sys.executable, "-m", "meta_client.cli.main"]
    done = subprocess.run([*failing, "checkpoint", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"damaged, passed over {tmp_path}/checkpoint.2: Input/output error" in done.stderr
    assert checkpoint_numbers(storage) == [1, 2, 3]


def busy_store(storage: FaultyStorage) -> JournalTransactionStore:
    """A store with something of everything, over several segments."""
    store = open_store(storage)
    for number in range(20):
        store.put(ORDERS, [b"p" * 300], 300, 1)
        branch = store.begin(xa(f"order-{number}"))
        store.transactional_put(branch, ORDERS, [b"a" * 100], 100, 1)
        store.transactional_put(branch, STOCK, [b"b" * 50], 50, 1)
        if number % 3:
            store.prepare(branch)
        if number % 4 == 0:
            store.commit(branch, one_phase=number % 3 == 0)
        elif number % 4 == 1:
            store.rollback(branch, RollbackReason.ASKED)
    return store


def checkpoint(store: JournalTransactionStore) -> int:
    taken = store.snapshot()
    number = store.write_checkpoint(taken, {})
    store.on_checkpoint(number, taken)
    return number


def reopened(storage: FaultyStorage) -> tuple[JournalTransactionStore, dict[Any, bytes]]:
    index = Index()
    store = open_store(storage, sink=index)
    return store, index.read(store.journal.segments)


def test_recovery_with_and_without_a_checkpoint_comes_to_the_same() -> None:
    storage = FaultyStorage(Random(0))
    store = busy_store(storage)
    checkpoint(store)
    store.put(STOCK, [b"after"], 5, 1)
    store.close()
    with_one, content = reopened(storage)
    assert with_one.recovered.checkpoint_number == 1
    assert with_one.recovered.replayed_records < 5
    live = checkpoint_of(with_one.state, {})
    with_one.close()
    storage.remove("checkpoint.1")
    without, same_content = reopened(storage)
    assert without.recovered.checkpoint_number == 0
    assert same_content == content
    again = checkpoint_of(without.state, {})
    assert (again.partitions, again.branches) == (live.partitions, live.branches)
    assert len(again.branches) > 3
    without.close()


def test_checkpoints_after_damaged_ones_get_a_higher_number() -> None:
    storage = FaultyStorage(Random(0))
    store = busy_store(storage)
    for number in (4, 5, 6):
        storage.replace(f"checkpoint.{number}", b"rubbish")
    assert checkpoint(store) == 7
    assert checkpoint_numbers(storage) == [5, 6, 7]
    store.close()
    again, _ = reopened(storage)
    assert again.recovered.checkpoint_number == 7
    again.close()


def test_what_is_left_to_replay_counts_across_restarts() -> None:
    storage = FaultyStorage(Random(0))
    store = busy_store(storage)
    taken = store.snapshot()
    store.write_checkpoint(taken, {})
    store.put(ORDERS, [b"x"], 1, 1)
    store.close()
    again, _ = reopened(storage)
    assert again.checkpoint_lsn == taken.lsn
    again.close()


def test_a_put_that_failed_leaves_no_partition_behind() -> None:
    store = open_store(FaultyStorage(Random(0)))
    with pytest.raises(ValueError, match="is not 1 to 255 bytes long"):
        store.put(ORDERS._replace(topic="t" * 300), [b"x"], 1, 1)
    assert store.snapshot().partitions == []
    store.close()


def test_a_journal_that_has_lost_its_beginning_and_its_checkpoints_is_refused() -> None:
    storage = FaultyStorage(Random(0))
    store = busy_store(storage)
    store.close()
    storage.remove(segment_name(0))
    with pytest.raises(CorruptJournal, match="its records were dropped, and no checkpoint reads back"):
        open_store(storage)


def test_a_checkpoint_beyond_the_journal_is_refused() -> None:
    storage = FaultyStorage(Random(0))
    store = busy_store(storage)
    checkpoint(store)
    store.close()
    last = max(storage.files)
    storage.remove(last)
    with pytest.raises(CorruptJournal, match=r"no segment, but a checkpoint up to LSN \d+") as caught:
        open_store(storage)
    assert caught.value.lsn == int(last.split(".")[0])


def test_a_checkpoint_below_the_journal_is_refused() -> None:
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    checkpoint(store)
    for _ in range(30):
        store.put(ORDERS, [b"p" * 300], 300, 1)
    store.close()
    storage.remove(segment_name(0))
    with pytest.raises(CorruptJournal, match="and the newest checkpoint ends there") as caught:
        open_store(storage)
    assert caught.value.next_valid_lsn == SEGMENT_BYTES + 128
