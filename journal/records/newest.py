"""Newest value of each key, for state that is folded from records. Pure."""

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class NewestByKey(Generic[K, V]):
    """The newest value of each key, the oldest key first, and the bytes that all of them cost. One owner thread."""

    def __init__(self, cost: Callable[[V], int]) -> None:
        self._values: dict[K, V] = {}
        self._cost = cost
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())

    def find(self, key: K) -> V | None:
        """Return the value of *key*; None if there is none."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Set the value of *key*, which keeps its place if it has one."""
        if (known := self._values.get(key)) is not None:
            self.bytes -= self._cost(known)
        self._values[key] = value
        self.bytes += self._cost(value)

    def remove(self, key: K) -> bool:
        """Remove *key*. Returns False if it was not there."""
        if (known := self._values.pop(key, None)) is None:
            return False
        self.bytes -= self._cost(known)
        return True
