"""The writer: who is told what and when, and what a failed call does to it."""

import threading
from collections.abc import Callable
from random import Random

from journal.frame import Offset
from journal.group_commit import FlushMode
from journal.journal import Journal
from journal.records import Put
from journal.segments import Segments
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES

WAIT_S = 10.0


class Progress:
    """Collects what on_progress tells, and waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, WAIT_S)


def start(storage: FaultyStorage, progress: Progress | None = None, flush: FlushMode | None = None) -> Journal:
    segments = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=True)
    end = segments.start
    return Journal.start(
        segments, end, epoch=1, incarnation=1, flush=flush or FlushMode(), on_progress=progress or Progress()
    )


def put(journal: Journal, body: bytes, base: int = 0) -> int:
    return journal.append(Put(ORDERS, Offset(base), 1), 0, [body], len(body)).end


def test_the_writer_wakes_up_for_a_record_that_begins_a_segment() -> None:
    progress = Progress()
    journal = start(FaultyStorage(Random(1)), progress)
    for _ in range(18):  # nobody waits in wait_flushed, which would wake the writer too
        end = put(journal, b"x" * 500)
        assert progress.wait_for(lambda: journal.flushed >= end), "the writer sleeps on a queued record"  # noqa: B023
    assert len(journal.segments) > 2
    journal.close()
