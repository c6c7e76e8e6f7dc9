"""A copy of a master's journal: the same bytes, the same state, the same index, however the stream is cut."""

from random import Random

import pytest

from journal.flush_mode import SYNC, FlushMode
from tests.fixtures.copies import feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.histories import write_history
from tests.fixtures.journals import INTERVAL, Index


@pytest.fixture
def master() -> FaultyStorage:
    storage = FaultyStorage(Random(1))
    write_history(storage).close()
    return storage


@pytest.mark.parametrize("flush", [SYNC, INTERVAL], ids=["sync", "interval"])
@pytest.mark.parametrize("bytes_max", [1, 100, 900, 100_000])
def test_a_copy_is_the_journal_byte_by_byte(master: FaultyStorage, flush: FlushMode, bytes_max: int) -> None:
    index, storage = Index(), FaultyStorage(Random(2))
    follower = open_follower(storage, flush=flush)
    feed(follower, stream(master, follower.end, Random(3), bytes_max), index)
    follower.journal.wait_flushed(follower.end)
    follower.close()
    assert image(storage) == image(master)
    again, mine = open_follower(storage, sink=(found := Index())), said(follower.state)
    assert said(again.state) == mine
    assert found.entries == index.entries
    again.close()
    assert image(storage) == image(master)
