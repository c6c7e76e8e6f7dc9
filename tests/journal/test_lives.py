"""Who wrote a journal, and where two copies of one part."""

from random import Random

import pytest

from journal.checkpoint import checkpoint_of, decode_checkpoint, encode_checkpoint, state_of
from journal.fold import JournalState
from journal.frame import Lsn
from journal.lives import LIVES_MAX, Life, note_life, parting
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, open_store

A, B, C, D = Life(1, 1, Lsn(128)), Life(1, 2, Lsn(1000)), Life(2, 3, Lsn(2000)), Life(1, 3, Lsn(2600))


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "parts_at"),
    [
        pytest.param([A], 500, [A], 500, 500, id="the same"),
        pytest.param([A], 500, [A], 900, 500, id="behind in one life"),
        pytest.param([A], 900, [A], 500, 500, id="ahead of a master that lost its last records"),
        pytest.param([A, B], 1500, [A, B, C], 3000, 1500, id="behind a promotion"),
        pytest.param([A, B, D], 3000, [A, B, C], 2400, 2000, id="a former master with a tail of two lives"),
        pytest.param([A, B], 2500, [A, B, C], 2400, 2000, id="a former master with a tail of one"),
        pytest.param([B], 2500, [A, B], 1800, 1800, id="the older life is forgotten"),
        pytest.param([A, B], 1000, [A, B], 1000, 1000, id="nothing written in the last life"),
        pytest.param([C], 2500, [A, B], 1800, None, id="no life in common"),
        pytest.param([], 0, [A], 1000, None, id="empty"),
        pytest.param([Life(1, 1, Lsn(136))], 500, [A], 500, None, id="a life of another journal"),
    ],
)
def test_where_two_copies_part(
    ours: list[Life], our_end: int, theirs: list[Life], their_end: int, parts_at: int | None
) -> None:
    assert parting(ours, our_end, theirs, their_end) == parts_at
    assert parting(theirs, their_end, ours, our_end) == parts_at


def test_only_the_newest_lives_are_kept() -> None:
    lives: list[Life] = []
    for number in range(LIVES_MAX + 10):
        note_life(lives, Life(1, number, Lsn(number)))
    assert len(lives) == LIVES_MAX
    assert (lives[0].incarnation, lives[-1].incarnation) == (10, LIVES_MAX + 9)


def test_every_open_is_a_life_with_and_without_a_checkpoint() -> None:
    storage = FaultyStorage(Random(0))
    begins = []
    for number in range(5):
        store = open_store(storage)
        begins.append(store.state.lives[-1].lsn)
        assert store.state.lives == [Life(1, at + 1, lsn) for at, lsn in enumerate(begins)]
        for _ in range(9):  # the segments are small: one open begins behind a PAD
            store.put(ORDERS, [b"x" * 700], 700, 1)
        end = store.state.lsn
        if number % 2:
            taken = store.snapshot()
            store.write_checkpoint(taken, {})
            assert state_of(taken).lives == store.state.lives
        store.close()
        assert number == 4 or open_life(storage).lsn == end
    assert begins == sorted(set(begins))


def open_life(storage: FaultyStorage) -> Life:
    """The life that the next open would be, tried on a copy."""
    copy = FaultyStorage(Random(0))
    copy.blobs = dict(storage.blobs)
    for name, file in storage.files.items():
        copy.create(name, file.size, bytes(file.cached))
    store = open_store(copy)
    life = store.state.lives[-1]
    store.close()
    return life


@pytest.mark.parametrize(
    "lives",
    [
        [A, A],
        [B, A],
        [A, Life(1, 2, Lsn(100))],
        [A, Life(2, 1, Lsn(1000))],
        [A, B, Life(1, 3, Lsn(9000))],
    ],
)
def test_a_checkpoint_with_impossible_lives_is_none(lives: list[Life]) -> None:
    state = JournalState(Lsn(5000), 1, 3)
    state.lives = lives
    decoded = decode_checkpoint(encode_checkpoint(checkpoint_of(state, {})))
    assert isinstance(decoded, str)
