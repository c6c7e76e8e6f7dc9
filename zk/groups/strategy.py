"""Strategies that assign partitions to the members of a group. Pure: same lists, same result, on every member.

Each member computes its own share. The shares cover every partition exactly once if all members use the same strategy
and see the same lists (spec 9.5, 9.6, 9.8).
"""

import bisect
import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

from zk.tree.nodes import Partition

RING_DIGESTS = 40  # of four points each: 160 points a consumer, as ketama has them


class LoadBalanceStrategy(Protocol):
    """A function that returns the share of *consumer_id* in *partitions*.

    *consumers* and *partitions* of one topic are sorted by `zk.tree.nodes.string_order`, without duplicates. A
    consumer that is not in the list gets nothing.
    """

    def __call__(
        self, consumer_id: str, consumers: Sequence[str], partitions: Sequence[Partition]
    ) -> list[Partition]: ...


def balanced(consumer_id: str, consumers: Sequence[str], partitions: Sequence[Partition]) -> list[Partition]:
    """Assign contiguous slices, those of the first members one longer if there is a remainder. The default."""
    if consumer_id not in consumers:
        return []
    position = consumers.index(consumer_id)
    each, longer = divmod(len(partitions), len(consumers))
    start = each * position + min(position, longer)
    return list(partitions[start : start + each + (1 if position < longer else 0)])


def consistent(consumer_id: str, consumers: Sequence[str], partitions: Sequence[Partition]) -> list[Partition]:
    """Assign by consistent hashing on a ring: few partitions move when a member comes or goes; shares are uneven."""
    if consumer_id not in consumers:
        return []
    ring: dict[int, str] = {}
    for consumer in consumers:  # of two members on one point, the later in the list has it
        for number in range(RING_DIGESTS):
            for point in struct.unpack("<4I", _md5(f"{consumer}-{number}")):
                ring[point] = consumer
    points = sorted(ring)

    def owner(partition: Partition) -> str:
        return ring[points[bisect.bisect_left(points, ring_hash(str(partition))) % len(points)]]

    return [partition for partition in partitions if owner(partition) == consumer_id]


def ring_hash(text: str) -> int:
    """Return the ring position of a partition's name: the first four bytes of its MD5, little-endian."""
    return int.from_bytes(_md5(text)[:4], "little")


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


STRATEGIES: dict[str, LoadBalanceStrategy] = {"default": balanced, "consistent": consistent}
