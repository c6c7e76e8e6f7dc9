"""Partitions of groups, and the brokers' answers about them, for `metaq groups`."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from meta_client.client import Client
from meta_client.net.deadline import Deadline
from meta_client.operations.group_lag import Ends, lag_of
from meta_client.operations.positions import ANSWER_TIMEOUT_S, Positions, warn
from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.groups.listing import GroupListing, PartitionProgress
from zk.tree.nodes import Partition, TopicPartition
from zk.tree.paths import TopicKind, is_name

COUNT_S_MAX: Final = 30.0  # for counting messages: the rest is unknown


def with_all_partitions(
    client: Client, listings: Collection[GroupListing], more: Collection[str] = ()
) -> list[GroupListing]:
    """Add to each the partitions of its topics, and of *more*, that have no owner and no stored offset."""
    offered: dict[str, list[Partition]] = {}
    whole: list[GroupListing] = []
    for listing in listings:
        known = {(progress.topic, progress.partition): progress for progress in listing.progress}
        # A member may subscribe to anything, as by mistake to a/b.
        for topic in filter(is_name, listing.topics.union(more, *listing.members.values())):
            if topic not in offered:
                offered[topic] = subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic))
            for partition in offered[topic]:
                known.setdefault((topic, partition), PartitionProgress(topic, partition))
        whole.append(replace(listing, progress=tuple(known[key] for key in sorted(known))))
    return whole


def ask_ends(
    client: Client,
    listings: list[GroupListing],
    tell: Callable[[str], None] = warn,
    broker_id: int | None = None,
) -> Ends:
    """Ask the running brokers about everything in *listings*, or about the partitions of one broker. *tell* gets a line
    for each broker that does not answer."""
    positions = Positions(client, tell)
    listings = [
        replace(it, progress=tuple(p for p in it.progress if broker_id in (None, p.partition.broker_id)))
        for it in listings
    ]
    ranges = positions.ranges({(p.topic, p.partition) for listing in listings for p in listing.progress})
    from_slaves = frozenset(key for key in ranges if positions.is_slave(key[1]))
    known = Ends(ranges, frozenset(positions.missing), from_slaves, {}, {}, time.time_ns() // 1_000_000)
    put_ms: dict[tuple[str, TopicPartition], int] = {}
    messages: dict[tuple[str, TopicPartition], int] = {}
    counting = Deadline(COUNT_S_MAX)
    for listing in listings:
        lags = {(p.topic, p.partition): lag_of(p, known) for p in listing.progress}
        behind = {key: lag.first for key, lag in lags.items() if lag.first is not None}
        put_ms |= {(listing.group, key): at for key, at in positions.put_times(behind).items()}
        counted = positions.messages(behind, min(ANSWER_TIMEOUT_S, counting.remaining_s()))
        messages |= {(listing.group, key): count for key, count in counted.items()}
    return replace(known, put_ms=put_ms, messages=messages)
