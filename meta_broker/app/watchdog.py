"""Gives up the ZooKeeper session of a broker that hangs, so that clients go elsewhere, and takes it back afterwards.

A hanging disk (an fsync that does not return) stops the journal, and the event loop too while that writes itself. The
ZooKeeper session would live on, because kazoo has its own threads, and consumers and producers would wait. The order is
what makes this safe:

1. Nothing is acknowledged any more, `hold`: once the session is gone, a slave may be promoted at any time.
2. The session is ended: peers see at once that the broker is gone. Then the log says what hangs, and since when; not
   earlier, because the log may be on the hanging disk.
3. Once everything moves again, the broker registers as after a lost session, which checks its epoch in ZooKeeper
   first. A superseded master ends there and has acknowledged nothing since 1. Any other one goes on: `release`.

A page fault in a mapping of the file stops the whole process, this thread included: then the session ends after its
timeout.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from journal.wal.open_journal import OpenJournal
from journal.wal.segments import segment_name
from meta_broker.cluster.membership import Membership
from zk.errors import ZooKeeperUnavailable

log = logging.getLogger(__name__)

SAMPLES: Final = 8  # samples without progress that make a hang
GOOD_SAMPLES: Final = 2  # samples with progress that end it


class ProgressSample(NamedTuple):
    """One sample of the counters that must advance."""

    beats: int  # of the event loop
    end: int  # of the journal, appended
    flushed: int  # of the journal, durable


class HangDetector:
    """Detects hangs by samples without progress, not by seconds: a stopped or starved process does not hang. Pure."""

    def __init__(self, journal_samples: int = SAMPLES) -> None:
        """*journal_samples*: more than SAMPLES if the journal is fsynced at intervals."""
        self.loop = self.journal = 0  # consecutive samples without progress
        self.is_hanging = False
        self._journal_samples = journal_samples
        self._good = 0
        self._last = ProgressSample(-1, 0, 0)

    def add_sample(self, now: ProgressSample) -> bool:
        """Compare the sample *now* with the one before. True: `is_hanging` has changed."""
        last, self._last = self._last, now
        self.loop = 0 if now.beats != last.beats else self.loop + 1
        self.journal = 0 if now.flushed != last.flushed or now.flushed >= now.end else self.journal + 1
        self._good = 0 if self.loop or self.journal else self._good + 1
        was = self.is_hanging
        if was:
            self.is_hanging = self._good < GOOD_SAMPLES
        else:
            self.is_hanging = self.loop >= SAMPLES or self.journal >= self._journal_samples
        return self.is_hanging != was


class LoopWatchdog:
    """Watches one event loop and its journal. `begin` and `close` on the loop's thread."""

    def __init__(
        self,
        journal: OpenJournal,
        membership: Membership | None,
        hang_seconds_max: float,
        hold: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """*hold* and *release* are called on other threads than the loop's. Without *membership* a hang is only
        logged.
        """
        self._journal = journal
        self._membership = membership
        self._hold = hold
        self._release = release
        self._period_s = hang_seconds_max / SAMPLES
        self._detector = HangDetector(SAMPLES + round(journal.flush_mode.interval_ms / 1000 / self._period_s))
        self._beats = 0  # the loop's
        self._beat_due: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._since = 0.0
        self._is_given_up = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_thread = threading.get_ident()
        self._beat(loop)
        self._thread.start()

    @property
    def is_hanging(self) -> bool:
        """True while the loop or the journal makes no progress. Any thread."""
        return self._detector.is_hanging

    def close(self) -> None:
        """Stop watching. Blocks while the session is being given up or taken back."""
        if self._beat_due is not None:
            self._beat_due.cancel()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beats += 1
        self._beat_due = loop.call_later(self._period_s / 2, self._beat, loop)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            if self._journal.failure is not None:
                return  # the broker is ending
            end = self._journal.end  # read before `flushed`, which may move beyond it
            if self._detector.add_sample(ProgressSample(self._beats, end, self._journal.flushed)):
                if self._detector.is_hanging:
                    self._hangs()
                else:
                    log.warning("no longer hanging after=%.1f s", time.monotonic() - self._since)
            if self._is_given_up and not self._detector.is_hanging:
                self._come_back()

    def _hangs(self) -> None:
        samples = max(self._detector.loop, self._detector.journal)
        self._since = time.monotonic() - samples * self._period_s
        for_s, is_given_up = time.monotonic() - self._since, False
        if self._membership is not None and not self._is_given_up:
            self._membership.give_up(self._hold)
            self._is_given_up = is_given_up = True
        told = ": ZooKeeper session given up, nothing is acknowledged until it is back" if is_given_up else ""
        if self._detector.journal:
            path, durable = f"{self._journal.storage.path}/{self._segment()}", self._journal.flushed
            log.critical("hangs for=%.1f s disk file=%s durable_below=%d%s", for_s, path, durable, told)
        else:
            log.critical("hangs for=%.1f s event loop at=%s%s", for_s, self._place(), told)

    def _come_back(self) -> None:
        assert self._membership is not None
        try:
            self._membership.come_back(self._release)
        except ZooKeeperUnavailable as error:
            log.warning("not back in ZooKeeper, trying again error=%s", error)
        else:
            self._is_given_up = False

    def _place(self) -> str:
        """Return the line of code that the event loop's thread is at."""
        frame = sys._current_frames().get(self._loop_thread)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"

    def _segment(self) -> str:
        try:
            return segment_name(self._journal.segments.locate(self._journal.flushed)[0])
        except KeyError:  # the next segment does not exist yet
            return ""
