"""Fetches messages of a partition from a broker: at once, or by a long poll (spec 8.4).

A runner waits only for messages that the broker already has. At the end of a partition, a broker with `fetch` keeps the
request until there are new ones; other brokers are asked again after a back-off.
"""

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import NamedTuple

from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.long_polls import LongPolls
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Position, milliseconds, offset_of
from meta_client.consumer.routing import Route, Routes, SlaveLacks
from meta_client.errors import NotConnected
from meta_client.net.calls import checked_data, checked_value, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transports
from meta_client.protocol.answers import parse_offset_range
from meta_client.protocol.errors import MetaError, Moved, NotFound
from meta_client.protocol.requests import Fetch, Get, Offsets
from meta_client.protocol.responses import Data
from zk.brokers.cluster import Brokers
from zk.tree.broker_url import BrokerUrl

_log = logging.getLogger(__name__)

# Size of a long poll's answer: thousands may arrive at once, and are held until runners take them. Other fetches are
# bounded by the number of runners.
WAITING_BYTES_MAX = 64 * 1024


class FetchReply(NamedTuple):
    """Messages at the offset asked for. The log end is None if the broker does not tell it."""

    body: bytes
    log_end: int | None = None
    is_early: bool = False  # the broker ended a long poll early


class FetchClient:
    """Fetches for one consumer. Runner threads, except `set_brokers`, `withdraw` and `long_polls`."""

    def __init__(
        self,
        group: str,
        connections: Transports,
        timeout_s: float,
        wait_s: float,
        on_finished: Callable[[FetchRequest], None],
    ) -> None:
        """*timeout_s* limits an answer, beyond the time of a long poll; *on_finished*: see LongPolls."""
        self.timeout_s = timeout_s
        self.long_polls = LongPolls(on_finished)
        self._routes = Routes()
        self._asked: dict[TopicPartition, Route] = {}  # last route of each partition
        self._on_finished = on_finished
        self._group = group
        self._connections = connections
        self._wait_ms = max(1, int(wait_s * 1000))

    def set_brokers(self, brokers: Brokers) -> None:
        """Set the brokers that are up. Long polls at brokers that are no longer chosen are cancelled, and their
        requests finished."""
        self._routes.set_brokers(brokers)
        moved = [key for key, route in list(self._asked.items()) if self._routes.choose(key) != route]
        for request in self.long_polls.cancel(moved):
            self._on_finished(request)

    def withdraw(self, keys: Collection[TopicPartition]) -> None:
        """Drop the state of these partitions."""
        self.long_polls.cancel(keys)
        self._routes.forget(keys)
        for key in keys:
            self._asked.pop(key, None)

    def offset_of(self, request: FetchRequest, position: Position) -> int:
        """Return the offset of *position* in a partition. Raises MetaError.

        A broker that does not support times is read from the beginning: better too much than too little.
        """
        if (offset := offset_of(position)) is not None:
            return offset
        assert isinstance(position, datetime)
        connection = self._connections.get(self._route(request, is_back=False).url, CONNECT_TIMEOUT_S, patient=False)
        if "offsets" not in connection.capabilities(self.timeout_s).extensions:
            _log.warning(
                "the broker knows nothing of times, reading from the beginning group=%s partition=%s/%s time=%s",
                *(self._group, request.topic, request.partition, position.isoformat()),
            )
            return 0
        query = Offsets(request.topic, request.partition.number, milliseconds(position), next_opaque())
        what = f"offsets {request.topic}/{request.partition}"
        return parse_offset_range(wait_result(connection.submit(query), self.timeout_s, what).message).at

    def fetch(self, request: FetchRequest, what: str) -> FetchReply | None:
        """Return the answer to the next fetch of *request*, or the result of its long poll.

        None: a long poll has begun, and the request is no longer the caller's. Raises MetaError.
        """
        result = self.long_polls.take_result(request)
        route = self._route(request, is_back=result is not None)
        try:
            if result is not None:
                return self._answer(request, result.data(what), is_early=result.is_early)
            return self._send(request, route.url, what)
        except Moved as moved:
            self._routes.failed(request.key, route)
            if not self._routes.is_final(request.key, route, moved, request.offset):
                raise SlaveLacks(what, route, moved) from moved
            raise
        except NotFound:
            self._routes.forget([request.key])  # the end, or beyond what that slave has: not a failure
            raise
        except MetaError:
            self._routes.failed(request.key, route)
            raise

    def _route(self, request: FetchRequest, *, is_back: bool) -> Route:
        """Choose the route of *request*; with *is_back*, return that of its finished long poll. Raises NotConnected."""
        key, broker_id = request.key, request.partition.broker_id
        if is_back and (asked := self._asked.get(key)) is not None:
            return asked
        if (route := self._routes.choose(key)) is None:
            raise NotConnected(f"no broker with id {broker_id} is up: start it, or wait")
        if (before := self._asked.get(key)) != route:
            self._asked[key] = route
            if before is not None:
                _log.info("read elsewhere group=%s partition=%s/%s from=%s", self._group, *key, route)
        return route

    def _send(self, request: FetchRequest, url: BrokerUrl, what: str) -> FetchReply | None:
        connection = self._connections.get(url, CONNECT_TIMEOUT_S, patient=False)
        timeout_s = self.timeout_s
        target = request.topic, self._group, request.partition.number, request.offset
        extensions = connection.capabilities(timeout_s).extensions
        request.tells_end = "fetch" in extensions
        if not request.tells_end:
            get = Get(*target, request.ask_for(), next_opaque())
            return FetchReply(checked_value(connection.submit(get).wait(timeout_s), what).body)
        epoch = request.epoch if "owner" in extensions else None
        if request.is_at_end:
            outgoing = Fetch(*target, request.ask_for(WAITING_BYTES_MAX), 1, self._wait_ms, next_opaque(), epoch)
            self.long_polls.start(request, connection, outgoing)
            return None
        outgoing = Fetch(*target, request.ask_for(), 1, 0, next_opaque(), epoch)
        return self._answer(request, checked_data(connection.submit(outgoing).wait(timeout_s), what))

    def _answer(self, request: FetchRequest, data: Data, *, is_early: bool = False) -> FetchReply:
        self._routes.answered(request.key, data.read_from)
        return FetchReply(data.body, data.log_end, is_early)
