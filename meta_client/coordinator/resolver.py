"""The background resolver: ends what transactions of this process could not, soon, and without being asked.

A transaction that leaves something (a rollback that was not confirmed, a decision that is not carried out) names the
ways to its participants. A thread, or a task, then recovers over connections of its own until nothing is left, and
ends. It touches no connection and no producer of a user's.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from meta_client.coordinator.errors import DecisionUnknown
from meta_client.coordinator.finishing import Closing, waits_s
from meta_client.coordinator.participants import Participant

log = logging.getLogger(__name__)

Way = Callable[[], AbstractContextManager[Participant]]
JOIN_S = 10.0  # longer than any one answer is waited for


class Runner(Protocol):
    """Runs one function beside its caller: in a thread, or in a task."""

    def start(self, work: Callable[[], None]) -> None: ...

    def join(self) -> None: ...


class Threads:
    """Daemon threads."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="metaq resolver", daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)


class Resolver:
    """Any thread. At most one look at a time; nothing runs while nothing is left."""

    def __init__(self, look: Callable[[Mapping[str, Way]], bool], closing: Closing, runner: Runner) -> None:
        """*look* recovers over all ways, and tells whether nothing is left that time could mend."""
        self._look = look
        self._closing = closing
        self._runner = runner
        self._lock = threading.Lock()  # guards the next three
        self._ways: dict[str, Way] = {}  # by place
        self._is_running = False
        self._is_called = False

    def leave(self, ways: Mapping[str, Way]) -> None:
        """Something is left at the places that *ways* lead to."""
        with self._lock:
            self._ways.update(ways)
            self._is_called = True
            if self._is_running or self._closing.is_set():
                return
            self._is_running = True
        self._runner.start(self._run)

    def join(self) -> None:
        """Wait for the last look, once *closing* is set."""
        self._runner.join()

    def _run(self) -> None:
        try:
            self._look_until_done()
        except BaseException:
            with self._lock:
                self._is_running = False  # the next transaction that leaves something starts another
            raise

    def _look_until_done(self) -> None:
        for wait_s in waits_s():
            if self._closing.wait(wait_s):
                return
            with self._lock:
                self._is_called = False
                ways = dict(self._ways)
            try:
                is_done = self._look(ways)
            except DecisionUnknown as error:
                log.error("nothing more is resolved reason=%s", error)
                return
            except Exception:
                log.exception("a look at what is left failed, and is repeated")
                continue
            with self._lock:
                if is_done and not self._is_called:
                    self._ways.clear()
                    self._is_running = False
                    return
