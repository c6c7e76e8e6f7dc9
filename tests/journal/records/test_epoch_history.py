"""Epoch histories, and the LSN at which two copies of a journal diverge."""

from random import Random

import pytest

from journal.errors import InvalidContent
from journal.records.epoch_history import EPOCH_HISTORY_MAX, WriterEpoch, add_epoch, divergence_lsn
from journal.records.header import Lsn
from journal.state.checkpoint import checkpoint_of, decode_checkpoint, encode_checkpoint, state_of
from journal.state.journal_state import JournalState
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, open_store

A, B, C, D = (
    WriterEpoch(1, 1, Lsn(128)),
    WriterEpoch(1, 2, Lsn(1000)),
    WriterEpoch(2, 3, Lsn(2000)),
    WriterEpoch(1, 3, Lsn(2600)),
)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "parts_at"),
    [
        pytest.param([A], 500, [A], 500, 500, id="the same"),
        pytest.param([A], 500, [A], 900, 500, id="behind in one epoch"),
        pytest.param([A], 900, [A], 500, 500, id="ahead of a master that lost its last records"),
        pytest.param([A, B], 1500, [A, B, C], 3000, 1500, id="behind a promotion"),
        pytest.param([A, B, D], 3000, [A, B, C], 2400, 2000, id="a former master with a tail of two epochs"),
        pytest.param([A, B], 2500, [A, B, C], 2400, 2000, id="a former master with a tail of one"),
        pytest.param([B], 2500, [A, B], 1800, 1800, id="the older epoch is forgotten"),
        pytest.param([A, B], 1000, [A, B], 1000, 1000, id="nothing written in the last epoch"),
        pytest.param([C], 2500, [A, B], 1800, None, id="no epoch in common"),
        pytest.param([], 0, [A], 1000, None, id="empty"),
        pytest.param([WriterEpoch(1, 1, Lsn(136))], 500, [A], 500, None, id="an epoch of another journal"),
    ],
)
def test_where_two_copies_part(
    ours: list[WriterEpoch], our_end: int, theirs: list[WriterEpoch], their_end: int, parts_at: int | None
) -> None:
    assert divergence_lsn(ours, our_end, theirs, their_end) == parts_at
    assert divergence_lsn(theirs, their_end, ours, our_end) == parts_at


def test_only_the_newest_epochs_are_kept() -> None:
    epochs: list[WriterEpoch] = []
    for number in range(EPOCH_HISTORY_MAX + 10):
        add_epoch(epochs, WriterEpoch(1, number, Lsn(number)))
    assert len(epochs) == EPOCH_HISTORY_MAX
    assert (epochs[0].incarnation, epochs[-1].incarnation) == (10, EPOCH_HISTORY_MAX + 9)


def test_every_open_is_an_epoch_with_and_without_a_checkpoint() -> None:
    storage = FaultyStorage(Random(0))
    begins = []
    for number in range(5):
        store = open_store(storage)
        begins.append(store.state.epoch_history[-1].lsn)
        assert store.state.epoch_history == [WriterEpoch(1, at + 1, lsn) for at, lsn in enumerate(begins)]
        for _ in range(9):  # the segments are small: one open begins behind a PAD
            store.put(ORDERS, [b"x" * 700], 700, 1)
        end = store.state.lsn
        if number % 2:
            taken = store.snapshot()
            store.write_checkpoint(taken, {})
            assert state_of(taken).epoch_history == store.state.epoch_history
        store.close()
        assert number == 4 or open_epoch(storage).lsn == end
    assert begins == sorted(set(begins))


def open_epoch(storage: FaultyStorage) -> WriterEpoch:
    """Return the epoch the next open would have, tried on a copy."""
    copy = FaultyStorage(Random(0))
    copy.blobs = dict(storage.blobs)
    for name, file in storage.files.items():
        copy.create(name, file.size, bytes(file.cached))
    store = open_store(copy)
    writer_epoch = store.state.epoch_history[-1]
    store.close()
    return writer_epoch


@pytest.mark.parametrize(
    "epochs",
    [
        [A, A],
        [B, A],
        [A, WriterEpoch(1, 2, Lsn(100))],
        [A, WriterEpoch(2, 1, Lsn(1000))],
        [A, B, WriterEpoch(1, 3, Lsn(9000))],
    ],
)
def test_a_checkpoint_with_an_impossible_epoch_history_is_none(epochs: list[WriterEpoch]) -> None:
    state = JournalState(Lsn(5000), 1, 3)
    state.epoch_history = epochs
    with pytest.raises(InvalidContent):
        decode_checkpoint(encode_checkpoint(checkpoint_of(state, {})))
