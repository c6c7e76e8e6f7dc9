"""Workers: run a consumer's fetching and listeners as threads, or as tasks (aio/workers.py)."""

import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol, TypeVar

from meta_client.consumer.listener_exit import check_plain, isolated

_Delivered = TypeVar("_Delivered")


class Workers(Protocol):
    """Runs one function several times concurrently, until each call returns."""

    def condition(self) -> threading.Condition:
        """Return a new condition that workers and threads can wait for."""

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        """Run *work* *count* times concurrently. Call once."""

    def join(self) -> None:
        """Wait until all have returned, or were never started. Not on a worker."""

    def is_current(self) -> bool:
        """Return True if the caller is a worker, as inside a listener."""

    def block(self, work: Callable[[], None]) -> None:
        """Call *work*, which waits for a disk, on behalf of a worker."""

    def listener(self, topic: str, function: Callable[[_Delivered], object]) -> Callable[[_Delivered], object]:
        """Wrap a user's *function* for the workers: each call in its own copy of the context, raising only Exceptions.
        Raises TypeError for a function they can't call."""


class ThreadCondition(threading.Condition):
    """A condition that no ^C leaves locked.

    A `with` of threading.Condition runs Python code before it holds the lock, and before it gives that back, where a ^C
    may be raised: this one enters and leaves the lock itself, which is C.
    """

    __enter__ = property(attrgetter("_held.__enter__"))
    __exit__ = property(attrgetter("_held.__exit__"))

    def __init__(self) -> None:
        self._held = threading.RLock()
        super().__init__(self._held)


class ThreadWorkers:
    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def condition(self) -> threading.Condition:
        return ThreadCondition()

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        for number in range(count):
            thread = threading.Thread(target=work, name=f"{name} {number}", daemon=True)
            thread.start()
            self._threads.append(thread)  # join() takes no thread that could not be started

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def is_current(self) -> bool:
        return threading.current_thread() in self._threads

    def block(self, work: Callable[[], None]) -> None:
        work()

    def listener(self, topic: str, function: Callable[[_Delivered], object]) -> Callable[[_Delivered], object]:
        check_plain(topic, "listener", function)
        return isolated(function)
