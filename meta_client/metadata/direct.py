"""Topic metadata without ZooKeeper: asked of brokers that are listed by hand (spec 7.1).

A broker's `stats` give its id and the number of its partitions of a topic, so that genuine brokers can be listed too.
Brokers do not announce changes: a view that is some seconds old is refreshed by the next caller that needs it.
"""

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from meta_client.errors import NotConnected
from meta_client.metadata.topology import TopicView, shown_as
from meta_client.net.calls import wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transports
from meta_client.protocol.errors import MetaError
from meta_client.protocol.integers import int32
from meta_client.protocol.requests import Stats
from zk.errors import ZooKeeperUnavailable
from zk.forks import invalidate_after_fork
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import PARTITIONS_MAX, Partition
from zk.tree.paths import check_name

REFRESH_S: Final = 5.0  # added partitions are noticed within this time
RETRY_S: Final = 0.5  # the same, while a broker is away
ASK_S: Final = 1.0  # time limit per broker while others are asked too

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    view: TopicView
    until: float = 0.0  # monotonic: refresh after this


class DirectTopology:
    """Topic views of a client without ZooKeeper. Any thread may ask; call start() once."""

    def __init__(self, brokers: Sequence[BrokerUrl], connections: Transports, default_topic: str | None = None) -> None:
        self._brokers = tuple(dict.fromkeys(brokers))
        self._connections = connections
        self._default_topic = None if default_topic is None else check_name(default_topic)
        invalidate_after_fork(self)
        self._lock = threading.Lock()  # held while brokers are asked; guards writing of the next two
        self._ids: dict[BrokerUrl, int] = {}  # of those that have answered
        self._seen: dict[str, _Seen] = {}

    def start(self) -> None:
        """Ask every broker for its id. Raises NotConnected if none answers, or two have one id."""
        with self._lock:
            failures = self._meet(Deadline(ASK_S * 4))
        if not self._ids:
            raise NotConnected("; ".join(failures) or "no broker is listed: name one as host:port")

    def view(self, topic: str, timeout_s: float) -> TopicView:
        """Return the view of *topic*. Raises ZooKeeperUnavailable (as Topology does) if no broker answers in time;
        NotConnected for two brokers with one id, zk's InvalidName."""
        seen = self._seen.get(topic)
        if seen is None or seen.until <= time.monotonic():
            seen = self._refresh(check_name(topic), seen, timeout_s)
        if seen.view.partitions or self._default_topic in (None, topic):
            return seen.view
        return shown_as(seen.view, [self.view(self._default_topic, timeout_s)])

    def maybe_view(self, topic: str) -> TopicView | None:
        """Return the view of *topic*, refreshed if it is due; None if view() was never called for it."""
        return self.view(topic, ASK_S) if topic in self._seen else None

    def read_masters(self) -> dict[int, BrokerUrl]:
        """Return every listed broker that has ever answered, by id."""
        with self._lock:
            self._meet(Deadline(ASK_S * 4))
            return {broker_id: url for url, broker_id in self._ids.items()}

    def read_absent(self, masters: Collection[int]) -> set[int]:
        """Return the empty set: every broker that has answered is a master. Raises NotConnected if a listed broker
        never answered, as its branches are unknown."""
        del masters
        with self._lock:
            if failures := self._meet(Deadline(ASK_S * 4)):
                raise NotConnected("; ".join(failures))
        return set()

    def master_url(self, broker_id: int) -> BrokerUrl | None:
        """Return the address of a broker; None if it is not listed or has never answered."""
        return next((url for url, known in self._ids.items() if known == broker_id), None)

    def is_up(self, broker_id: int) -> bool:
        """Return whether a broker gave an answer when it was last asked about any topic; never waits."""
        return any(broker_id in seen.view.urls for seen in tuple(self._seen.values()))

    def close(self) -> None:
        """Do nothing: it owns no resources. Idempotent."""

    def _refresh(self, topic: str, seen: _Seen | None, timeout_s: float) -> _Seen:
        if not self._lock.acquire(timeout=timeout_s if seen is None else 0):
            if seen is not None:
                return seen  # another thread is asking: use the old view meanwhile
            raise ZooKeeperUnavailable(
                f"the brokers gave no answer about topic {topic!r} within {timeout_s:g} s: try again"
            )
        try:
            former = self._seen.get(topic)
            if former is not None and former is not seen:
                return former  # another thread has asked meanwhile
            now = self._ask_all(topic, former, Deadline(timeout_s))
            self._seen[topic] = now
            return now
        finally:
            self._lock.release()

    def _ask_all(self, topic: str, former: _Seen | None, deadline: Deadline) -> _Seen:
        failures = self._meet(deadline)
        counts: dict[int, int] = {}
        urls: dict[int, BrokerUrl] = {}
        for url, broker_id in self._ids.items():
            try:
                counts[broker_id] = _partitions(self._request_stats(url, topic, deadline))
                urls[broker_id] = url
            except MetaError as error:
                failures.append(f"broker {broker_id}: {error}")
        if not urls and former is None:
            raise ZooKeeperUnavailable(
                f"no broker answered about topic {topic!r} within {deadline.timeout_s:g} s: {failures}"
            )
        if failures:
            _log.info("brokers not asked topic=%s failures=%s", topic, failures)
        partitions = tuple(Partition(i, number) for i in sorted(counts) for number in range(counts[i]))
        known = partitions if former is None else tuple(sorted({*former.view.known, *partitions}))
        view = TopicView(topic, partitions, urls, partitions, known)
        if former is not None and view == former.view:
            view = former.view  # callers compare by identity
        return _Seen(view, time.monotonic() + (RETRY_S if failures else REFRESH_S))

    def _meet(self, deadline: Deadline) -> list[str]:
        """Ask the brokers whose id is unknown; return why some did not answer. Raises NotConnected."""
        failures = []
        for url in self._brokers:
            if url in self._ids:
                continue
            try:
                broker_id = _broker_id(self._request_stats(url, "", deadline))
            except MetaError as error:
                failures.append(f"broker at {url}: {error}")
                continue
            if (other := self.master_url(broker_id)) is not None:
                raise NotConnected(f"{url} and {other} are both broker {broker_id}: list each broker once")
            self._ids[url] = broker_id
        return failures

    def _request_stats(self, url: BrokerUrl, item: str, deadline: Deadline) -> dict[str, str]:
        timeout_s = min(deadline.remaining_s(), ASK_S)
        connection = self._connections.get(url, timeout_s, patient=False)
        text = wait_result(connection.submit(Stats(item, next_opaque())), timeout_s, f"stats of {url}").text
        return {key: value for line in text.splitlines() for key, _, value in [line.partition(" ")]}


def _broker_id(stats: dict[str, str]) -> int:
    """Return the broker id in *stats*. Raises NotConnected for a broker that takes no messages."""
    if stats.get("slave") == "true":
        raise NotConnected("it is a slave: name its master")
    return _number(stats, "broker_id")


def _partitions(stats: dict[str, str]) -> int:
    """Return the number of the topic's partitions at a broker; 0 if it does not offer the topic. Raises
    NotConnected."""
    if "resultCode" not in stats or stats["resultCode"] == "1":
        return 0
    return min(_number(stats, "partitions"), PARTITIONS_MAX)


def _number(stats: dict[str, str], key: str) -> int:
    try:
        number = int32(stats[key].encode())
        if number < 0:
            raise ValueError(f"{number} is negative")
    except (KeyError, ValueError) as error:
        raise NotConnected(f"its stats have no sound {key} ({error!r}): is it a MetaQ broker?") from error
    return number


def parse_brokers(texts: Sequence[str]) -> list[BrokerUrl]:
    """Parse brokers as callers name them, `host:port` or a URL. Raises InvalidUrl."""
    return [BrokerUrl.parse(text if "://" in text else f"meta://{text}") for text in texts]
