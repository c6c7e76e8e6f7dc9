"""Where messages go when there is no ZooKeeper: to brokers listed by hand, which are asked what they have (spec 7.1).

What each broker is, and how many partitions it has of a topic, is what its `stats` say, so that genuine brokers can be
listed too. Nobody tells of changes here: a view that is some seconds old is asked for anew, by whoever needs it.
"""

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from meta_client.calls import wait_result
from meta_client.deadline import Deadline
from meta_client.errors import NotConnected
from meta_client.opaques import next_opaque
from meta_client.protocol.errors import MetaError
from meta_client.protocol.integers import int32
from meta_client.protocol.requests import Stats
from meta_client.topology import TopicView, shown_as
from meta_client.transport import Transports
from zk.broker_url import BrokerUrl
from zk.errors import ZooKeeperUnavailable
from zk.forks import made_here
from zk.nodes import PARTITIONS_MAX, Partition
from zk.paths import check_name

REFRESH_S: Final = 5.0  # how long nobody notices partitions that were added
RETRY_S: Final = 0.5  # the same, while a broker is away
ASK_S: Final = 1.0  # what a broker may take to answer while others are asked too

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    view: TopicView
    until: float = 0.0  # monotonic: it is good enough


class DirectTopology:
    """The views of a client without ZooKeeper. Any thread may ask; start() once."""

    def __init__(self, brokers: Sequence[BrokerUrl], connections: Transports, default_topic: str | None = None) -> None:
        self._brokers = tuple(dict.fromkeys(brokers))
        self._connections = connections
        self._default_topic = None if default_topic is None else check_name(default_topic)
        made_here(self)
        self._lock = threading.Lock()  # held while brokers are asked; guards writing of the next two
        self._ids: dict[BrokerUrl, int] = {}  # those that have said who they are
        self._seen: dict[str, _Seen] = {}

    def start(self) -> None:
        """Ask every broker who it is. Raises NotConnected if none answers, or two have one id."""
        with self._lock:
            failures = self._meet(Deadline(ASK_S * 4))
        if not self._ids:
            raise NotConnected("; ".join(failures) or "no broker is listed: name one as host:port")

    def view(self, topic: str, timeout_s: float) -> TopicView:
        """The view of *topic*. Raises ZooKeeperUnavailable, as another client's does, if no broker can tell in time;
        NotConnected for two brokers with one id, zk's InvalidName."""
        seen = self._seen.get(topic)
        if seen is None or seen.until <= time.monotonic():
            seen = self._look(check_name(topic), seen, timeout_s)
        if seen.view.partitions or self._default_topic in (None, topic):
            return seen.view
        return shown_as(seen.view, [self.view(self._default_topic, timeout_s)])

    def maybe_view(self, topic: str) -> TopicView | None:
        """The view of *topic*, asked for anew if it is due; None if nobody has asked for it."""
        return self.view(topic, ASK_S) if topic in self._seen else None

    def read_masters(self) -> dict[int, BrokerUrl]:
        """Every listed broker that has ever answered, by its id."""
        with self._lock:
            self._meet(Deadline(ASK_S * 4))
            return {broker_id: url for url, broker_id in self._ids.items()}

    def read_absent(self, masters: Collection[int]) -> set[int]:
        """None: those that have answered are all among the masters. Raises NotConnected if one never has: what it
        holds, nobody can tell."""
        del masters
        with self._lock:
            if failures := self._meet(Deadline(ASK_S * 4)):
                raise NotConnected("; ".join(failures))
        return set()

    def master_url(self, broker_id: int) -> BrokerUrl | None:
        """Where a broker is; None for one that is not listed, or has never answered."""
        return next((url for url, known in self._ids.items() if known == broker_id), None)

    def close(self) -> None:
        """Nothing is held. Idempotent."""

    def _look(self, topic: str, seen: _Seen | None, timeout_s: float) -> _Seen:
        if not self._lock.acquire(timeout=timeout_s if seen is None else 0):
            if seen is not None:
                return seen  # somebody is asking: what is known will do meanwhile
            raise ZooKeeperUnavailable(f"the brokers did not tell of topic {topic!r} within {timeout_s:g} s: try again")
        try:
            former = self._seen.get(topic)
            if former is not None and former is not seen:
                return former  # somebody has asked meanwhile
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
                counts[broker_id] = _partitions(self._ask(url, topic, deadline))
                urls[broker_id] = url
            except MetaError as error:
                failures.append(f"broker {broker_id}: {error}")
        if not urls and former is None:
            raise ZooKeeperUnavailable(f"no broker told of topic {topic!r} within {deadline.timeout_s:g} s: {failures}")
        if failures:
            _log.info("brokers not asked topic=%s failures=%s", topic, failures)
        partitions = tuple(Partition(i, number) for i in sorted(counts) for number in range(counts[i]))
        known = partitions if former is None else tuple(sorted({*former.view.known, *partitions}))
        view = TopicView(topic, partitions, urls, partitions, known)
        if former is not None and view == former.view:
            view = former.view  # others go by its identity
        return _Seen(view, time.monotonic() + (RETRY_S if failures else REFRESH_S))

    def _meet(self, deadline: Deadline) -> list[str]:
        """Ask those who they are that have not said so; why some did not answer. Raises NotConnected."""
        failures = []
        for url in self._brokers:
            if url in self._ids:
                continue
            try:
                broker_id = _broker_id(self._ask(url, "", deadline))
            except MetaError as error:
                failures.append(f"broker at {url}: {error}")
                continue
            if (other := self.master_url(broker_id)) is not None:
                raise NotConnected(f"{url} and {other} are both broker {broker_id}: list each broker once")
            self._ids[url] = broker_id
        return failures

    def _ask(self, url: BrokerUrl, item: str, deadline: Deadline) -> dict[str, str]:
        timeout_s = min(deadline.remaining_s(), ASK_S)
        connection = self._connections.get(url, timeout_s, patient=False)
        text = wait_result(connection.submit(Stats(item, next_opaque())), timeout_s, f"stats of {url}").text
        return {key: value for line in text.splitlines() for key, _, value in [line.partition(" ")]}


def _broker_id(stats: dict[str, str]) -> int:
    """Raises NotConnected: it is none that takes messages."""
    if stats.get("slave") == "true":
        raise NotConnected("it is a slave: name its master")
    return _number(stats, "broker_id")


def _partitions(stats: dict[str, str]) -> int:
    """How many partitions of the topic a broker has; 0: it does not offer it. Raises NotConnected."""
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
    """Brokers as callers name them, `host:port` or a URL. Raises InvalidUrl."""
    return [BrokerUrl.parse(text if "://" in text else f"meta://{text}") for text in texts]
