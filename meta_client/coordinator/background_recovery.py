"""Background recovery: finishes what transactions of this process left.

A transaction that leaves an unconfirmed rollback or decision registers its participants. A thread or task then recovers
over connections of its own until nothing is left, and ends. It uses no connection or producer of the user's.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from meta_client.coordinator.errors import DecisionUnknown
from meta_client.coordinator.participants import Participant
from meta_client.coordinator.phase_two import Closing, waits_s

log = logging.getLogger(__name__)

Way = Callable[[], AbstractContextManager[Participant]]
JOIN_S = 10.0  # exceeds the wait for any single reply


class Runner(Protocol):
    """Runs a function concurrently: in a thread, or in a task."""

    def start(self, work: Callable[[], None]) -> None: ...

    def join(self) -> None: ...


class RecoveryThread:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="metaq recovery", daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)


class BackgroundRecovery:
    """Runs at most one recovery pass at a time, and none while nothing is left. Any thread."""

    def __init__(self, recover: Callable[[Mapping[str, Way]], bool], closing: Closing, runner: Runner) -> None:
        """*recover* recovers over all ways, and returns True if nothing is left that a retry could finish."""
        self._recover = recover
        self._closing = closing
        self._runner = runner
        self._lock = threading.Lock()  # guards the next three fields
        self._ways: dict[str, Way] = {}  # by place
        self._is_running = False
        self._is_called = False

    def add_ways(self, ways: Mapping[str, Way]) -> None:
        """Register *ways* to unfinished branches."""
        with self._lock:
            self._ways.update(ways)
            self._is_called = True
            if self._is_running or self._closing.is_set():
                return
            self._is_running = True
        self._runner.start(self._run)

    def join(self) -> None:
        """Wait for the last pass, once *closing* is set."""
        self._runner.join()

    def _run(self) -> None:
        try:
            self._recover_until_done()
        except BaseException:
            with self._lock:
                self._is_running = False  # the next call of `add_ways` starts another
            raise

    def _recover_until_done(self) -> None:
        for wait_s in waits_s():
            if self._closing.wait(wait_s):
                return
            with self._lock:
                self._is_called = False
                ways = dict(self._ways)
            try:
                is_done = self._recover(ways)
            except DecisionUnknown as error:
                log.error("nothing more is resolved reason=%s", error)
                return
            except Exception:
                log.exception("recovery pass failed, and is repeated")
                continue
            with self._lock:
                if is_done and not self._is_called:
                    self._ways.clear()
                    self._is_running = False
                    return
