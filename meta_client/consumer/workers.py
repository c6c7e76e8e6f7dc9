"""Who runs a consumer's fetching and its listeners, and how they wait: threads, or tasks (aio/workers.py)."""

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from meta_client.consumer.exits import check_plain, contained

Delivered = TypeVar("Delivered")


class Workers(Protocol):
    """Runs one function several times at once, until each returns."""

    def condition(self) -> threading.Condition:
        """What they and other threads wait for."""

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        """Have *work* run *count* times, side by side. Once."""

    def join(self) -> None:
        """Return once all have returned, or were never started. Not for one of them."""

    def is_current(self) -> bool:
        """Whether the caller is one of them, as it is inside a listener."""

    def block(self, work: Callable[[], None]) -> None:
        """Call *work*, which waits for a disk, for one of them."""

    def listener(self, topic: str, function: Callable[[Delivered], object]) -> Callable[[Delivered], object]:
        """A user's *function* as they call it: in a copy of their context each time, and raising Exceptions alone.
        Raises TypeError for one that they can't call."""


class Threads:
    """A thread each."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        self._threads = [threading.Thread(target=work, name=f"{name} {number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def is_current(self) -> bool:
        return threading.current_thread() in self._threads

    def block(self, work: Callable[[], None]) -> None:
        work()

    def listener(self, topic: str, function: Callable[[Delivered], object]) -> Callable[[Delivered], object]:
        check_plain(topic, "listener", function)
        return contained(function)
