"""Numbered batches: what is remembered, for how long, and through a checkpoint."""

import pytest

from journal.errors import InvalidRecord
from journal.records import producer_state as module
from journal.records.codec import encode
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.producer_state import (
    REMEMBERED_PER_PARTITION,
    BatchSequence,
    ProducerState,
    SequenceTooOld,
    StoredBatch,
)
from journal.records.record import PartitionName, PutBatch
from journal.repair.check import differences
from journal.state.checkpoint import Checkpoint, checkpoint_of, decode_checkpoint, encode_checkpoint, state_of
from journal.state.fold import apply
from journal.state.journal_state import JournalState
from tests.fixtures.journals import ORDERS


def stored(number: int) -> StoredBatch:
    return StoredBatch(number, Offset(number * 100), 2, number * 1000)


def add(state: JournalState, number: int, base: int, name: PartitionName = ORDERS) -> None:
    record = PutBatch(name, Offset(base), 2, number * 1000, BatchSequence("shop", number))
    kind, meta = encode(record)
    apply(state, RecordHeader(kind, 0, len(meta), 50, 0, 1, 1, state.lsn, state.lsn, 1), record)


def test_a_batch_is_found_while_it_is_remembered() -> None:
    memory = ProducerState()
    for number in range(0, 20, 2):  # numbers rise, they need not follow one another
        memory.add("shop", "orders", 0, stored(number))
    assert memory.find(BatchSequence("shop", 18), "orders", 0) == stored(18)
    assert memory.find(BatchSequence("shop", 19), "orders", 0) is None
    assert memory.find(BatchSequence("shop", 18), "orders", 1) is None
    assert memory.find(BatchSequence("other", 18), "orders", 0) is None
    oldest = 18 - 2 * (REMEMBERED_PER_PARTITION - 1)
    assert memory.find(BatchSequence("shop", oldest), "orders", 0) == stored(oldest)
    for number in (oldest - 2, 17):
        with pytest.raises(SequenceTooOld, match=f"batch {number} of producer shop"):
            memory.find(BatchSequence("shop", number), "orders", 0)


def test_the_least_recently_used_producers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    memory = ProducerState()
    for producer in ("a", "b", "c"):
        memory.add(producer, "orders", 0, stored(1))
    memory.add("a", "orders", 0, stored(2))
    memory.add("d", "orders", 0, stored(1))
    assert [window[0] for window, _ in memory] == ["c", "a", "d"]
    assert memory.find(BatchSequence("b", 1), "orders", 0) is None


def test_a_record_whose_number_does_not_rise_contradicts() -> None:
    state = JournalState(Lsn(128))
    add(state, 7, 0)
    with pytest.raises(InvalidRecord, match="batch 7 of producer shop after batch 7"):
        add(state, 7, 50)


def test_a_checkpoint_remembers_them_in_the_order_of_use() -> None:
    state = JournalState(Lsn(128))
    for number in range(3):
        add(state, number, number * 50)
    add(state, 9, 0, PartitionName("orders", 5))
    checkpoint = decode_checkpoint(encode_checkpoint(checkpoint_of(state, {})))
    assert isinstance(checkpoint, Checkpoint)
    assert list(state_of(checkpoint).producers) == list(state.producers)
    assert list(differences(state, checkpoint)) == []
    add(state, 3, 150)
    assert any("batches of producer shop to orders-0" in line for line in differences(state, checkpoint))
