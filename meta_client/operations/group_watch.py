"""Metrics and health of consumer groups, with members or without: what ZooKeeper and the brokers tell, every moment.

A group's members export their own lag, and with the last of them it vanishes. This stays.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from meta_client.admin.families import Family, MetricKind, Sample
from meta_client.admin.health import Health
from meta_client.client import Client
from meta_client.errors import text_of
from meta_client.operations.group_ends import ask_ends, with_all_partitions
from meta_client.operations.group_lag import FAULTS, Ends, LagState, group_row, lag_of
from meta_client.operations.placement import away_brokers
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError
from zk.groups.listing import GroupListing, PartitionProgress, list_groups

_GROUP: Final = ("consumergroup",)
_TOPIC: Final = ("consumergroup", "topic")
G: Final = MetricKind.GAUGE

MEMBERS: Final = Family("metaq_consumergroup_members", G, "Members that ZooKeeper knows.", _GROUP)
LAG_BYTES: Final = Family(
    "metaq_consumergroup_stored_lag_bytes",
    G,
    "From the offsets that it stored in ZooKeeper, or its start, to the ends; absent while one is unknown.",
    _TOPIC,
)
LAG_MESSAGES: Final = Family(
    "metaq_consumergroup_stored_lag_messages", G, "The same in messages; absent where brokers can't count them.", _TOPIC
)
LAG_SECONDS: Final = Family(
    "metaq_consumergroup_stored_lag_seconds", G, "Age of the oldest message of these; absent while unknown.", _TOPIC
)
UNOWNED: Final = Family("metaq_consumergroup_partitions_unowned", G, "Partitions that no member owns.", _TOPIC)
UNKNOWN: Final = Family(
    "metaq_consumergroup_partitions_unknown",
    G,
    "Partitions whose lag nobody can tell: see metaq groups describe.",
    _TOPIC,
)
BELOW_START: Final = Family(
    "metaq_consumergroup_partitions_below_start",
    G,
    "Partitions of which retention has deleted messages that the group has not consumed.",
    _TOPIC,
)
READ_AGE: Final = Family("metaq_consumergroup_read_age_seconds", G, "Time since groups were read, or since the start.")
READY: Final = Family(
    "metaq_consumergroup_exporter_ready",
    G,
    "1 if the last reading, moments ago, got every answer; /health/ready says what is missing.",
)
FAMILIES: Final = (MEMBERS, LAG_BYTES, LAG_MESSAGES, LAG_SECONDS, UNOWNED, UNKNOWN, BELOW_START, READ_AGE, READY)


class GroupWatch:
    """Reads groups, *names* or all of them, and keeps what it last found for *keep_s*: afterwards nothing is known."""

    def __init__(self, client: Client, names: Collection[str], keep_s: float) -> None:
        self._client = client
        self._names = names
        self._keep_s = keep_s
        self._found: tuple[Sample, ...] = ()
        self._read_at = time.monotonic()  # or begun
        self._trouble: tuple[str, ...] = ("it has read nothing yet",)

    def read(self) -> None:
        """Read the groups and ask the brokers. What can't be read is unknown from now on, and makes it not ready."""
        said: list[str] = []
        began = time.monotonic()
        session = self._client.session
        try:
            listings = with_all_partitions(self._client, list_groups(session, self._names or None))
            ends = ask_ends(self._client, listings, said.append)
            said += [f"broker {broker_id} is away" for broker_id in away_brokers(self._client)]
            said += map(str, session.malformed.found_since(began).values())
            found = tuple(sample for listing in listings for sample in samples_of(listing, ends))
        except (MetaError, ZooKeeperError) as error:
            self._found, self._trouble = (), (text_of(error),)
            return
        self._found, self._trouble, self._read_at = found, tuple(said), time.monotonic()

    def samples(self) -> Iterator[Sample]:
        """Yield what was found, while it is not too old. Any thread."""
        age_s = time.monotonic() - self._read_at
        yield Sample(READ_AGE, age_s)
        yield Sample(READY, int(not self.ready().why_not))
        if age_s < self._keep_s:
            yield from self._found

    def ready(self) -> Health:
        """Return whether the last reading, moments ago, got every answer. Any thread."""
        if (age_s := time.monotonic() - self._read_at) > self._keep_s:
            return Health((f"it has read nothing for {age_s:.0f} s", *self._trouble))
        return Health(self._trouble)


def samples_of(listing: GroupListing, ends: Ends) -> Iterator[Sample]:
    yield Sample(MEMBERS, len(listing.members) if listing.is_whole else None, (listing.group,))
    by_topic: dict[str, list[PartitionProgress]] = defaultdict(list)
    for progress in listing.progress:
        by_topic[progress.topic].append(progress)
    for topic, partitions in by_topic.items():
        labels = listing.group, topic
        row = group_row(replace(listing, progress=tuple(partitions)), ends)
        states = [lag_of(progress, ends).state for progress in partitions]
        is_known = listing.is_whole and FAULTS.isdisjoint(states)
        for family, column in ((LAG_BYTES, "lag"), (LAG_MESSAGES, "messages"), (LAG_SECONDS, "seconds")):
            value = row[column]
            assert value is None or isinstance(value, int | float)
            yield Sample(family, value if is_known else None, labels)
        yield Sample(UNOWNED, sum(progress.owner is None for progress in partitions), labels)
        yield Sample(UNKNOWN, sum(state in FAULTS for state in states), labels)
        yield Sample(BELOW_START, states.count(LagState.BELOW_START), labels)
