"""Branches of batches that their broker may not have committed yet, as the relay's row names them. Pure.

`[["GTRID", BROKER, ["TOPIC", ...]], ...]` in JSON. While a branch is there, messages of its topics wait, or they might
overtake it; those of other topics do not. So no topic is in branches of two batches, which bounds the text.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from meta_client.outbox.errors import DamagedRow
from meta_client.transactions.names import name_in
from zk.tree.nodes import Partition


class BatchBranch(NamedTuple):
    """Part of a batch that is at one broker."""

    gtrid: str
    broker_id: int
    topics: tuple[str, ...]


def branches_of(gtrid: str, sent: Iterable[tuple[str, Partition]]) -> list[BatchBranch]:
    """Return the branches of a batch with messages of these topics in these partitions."""
    topics = defaultdict[int, set[str]](set)
    for topic, partition in sent:
        topics[partition.broker_id].add(topic)
    return [BatchBranch(gtrid, broker_id, tuple(sorted(topics[broker_id]))) for broker_id in sorted(topics)]


def dump(branches: Sequence[BatchBranch]) -> str:
    """Return the text of *branches*."""
    return json.dumps(branches, separators=(",", ":"))


def load(text: str) -> tuple[BatchBranch, ...]:
    """Return the branches in *text*; none in an empty one. Raises DamagedRow."""
    try:
        return tuple(_branch(each) for each in json.loads(text or "[]"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedRow(str(error)) from error


def _branch(found: Any) -> BatchBranch:
    match found:
        case [str() as gtrid, int() as broker_id, [*topics]] if (
            name_in(gtrid) and type(broker_id) is int and all(type(topic) is str for topic in topics)
        ):
            return BatchBranch(gtrid, broker_id, tuple(topics))
    raise ValueError(f"{str(found)[:100]} is no branch of a batch")
