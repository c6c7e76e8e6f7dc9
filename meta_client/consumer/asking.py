"""Asking a broker for the next messages of a partition: at once, or by leaving the request there (spec 8.4).

A runner waits only for what a broker has already. At the end of a partition, a broker that knows `fetch` keeps the
request until there is something; of others we ask again after a rest.
"""

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import NamedTuple

from meta_client.calls import checked_data, checked_value, wait_result
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.flights import Flights
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Position, milliseconds, offset_of
from meta_client.consumer.routing import Route, Routes, SlaveLacks
from meta_client.errors import NotConnected
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import parse_offset_range
from meta_client.protocol.errors import MetaError, Moved, NotFound
from meta_client.protocol.requests import Fetch, Get, Offsets
from meta_client.protocol.responses import Data
from meta_client.transport import Transports
from zk.broker_url import BrokerUrl
from zk.cluster import Brokers

_log = logging.getLogger(__name__)

# What a request that waits at a broker asks for: thousands may be answered at the same moment, and all the answers
# are held until runners take them. What a runner itself asks for is bounded by the number of runners.
WAITING_BYTES_MAX = 64 * 1024


class Answer(NamedTuple):
    """What a broker has at the offset asked for. The log end is None if it does not tell."""

    body: bytes
    log_end: int | None = None
    is_early: bool = False  # it was asked to wait, and hardly did


class Asker:
    """One consumer's way to the brokers. Runner threads, but for `follow`, `withdraw` and `flights`."""

    def __init__(
        self,
        group: str,
        connections: Transports,
        timeout_s: float,
        wait_s: float,
        landed: Callable[[FetchRequest], None],
    ) -> None:
        """*timeout_s*: how long an answer may take that the broker need not wait for; *landed* as in Flights."""
        self.timeout_s = timeout_s
        self.flights = Flights(landed)
        self._routes = Routes()
        self._asked: dict[TopicPartition, Route] = {}  # where each partition was asked for last
        self._landed = landed
        self._group = group
        self._connections = connections
        self._wait_ms = max(1, int(wait_s * 1000))

    def follow(self, brokers: Brokers) -> None:
        """These brokers are up now. What waits at one that is not asked any more comes back, and is sent elsewhere."""
        self._routes.follow(brokers)
        moved = [key for key, route in list(self._asked.items()) if self._routes.choose(key) != route]
        for request in self.flights.cancel(moved):
            self._landed(request)

    def withdraw(self, keys: Collection[TopicPartition]) -> None:
        """Forget everything of these partitions."""
        self.flights.cancel(keys)
        self._routes.forget(keys)
        for key in keys:
            self._asked.pop(key, None)

    def offset_of(self, request: FetchRequest, position: Position) -> int:
        """The offset that *position* is in a partition. Raises MetaError.

        A broker that knows nothing of times is read from the beginning: too much is shown rather than too little.
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
        ask = Offsets(request.topic, request.partition.number, milliseconds(position), next_opaque())
        what = f"offsets {request.topic}/{request.partition}"
        return parse_offset_range(wait_result(connection.submit(ask), self.timeout_s, what).message).at

    def ask(self, request: FetchRequest, what: str) -> Answer | None:
        """The answer to the next fetch of *request*, or what it brought back from the broker where it waited.

        None: it waits there now, and is not the caller's any more. Raises MetaError.
        """
        landing = self.flights.take(request)
        route = self._route(request, is_back=landing is not None)
        try:
            if landing is not None:
                return self._answer(request, landing.data(what), is_early=landing.is_early)
            return self._ask(request, route.url, what)
        except Moved as moved:
            self._routes.failed(request.key, route)
            if not self._routes.is_final(request.key, route, moved, request.offset):
                raise SlaveLacks(what, route, moved) from moved
            raise
        except NotFound:
            self._routes.forget([request.key])  # the end there, or further than that slave has got: no fault of its own
            raise
        except MetaError:
            self._routes.failed(request.key, route)
            raise

    def _route(self, request: FetchRequest, *, is_back: bool) -> Route:
        """Where *request* is asked for, or (*is_back*) was, as it waited there. Raises NotConnected."""
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

    def _ask(self, request: FetchRequest, url: BrokerUrl, what: str) -> Answer | None:
        connection = self._connections.get(url, CONNECT_TIMEOUT_S, patient=False)
        timeout_s = self.timeout_s
        where = request.topic, self._group, request.partition.number, request.offset
        extensions = connection.capabilities(timeout_s).extensions
        request.tells_end = "fetch" in extensions
        if not request.tells_end:
            get = Get(*where, request.ask_for(), next_opaque())
            return Answer(checked_value(connection.submit(get).wait(timeout_s), what).body)
        epoch = request.epoch if "owner" in extensions else None
        if request.is_at_end:
            fetch = Fetch(*where, request.ask_for(WAITING_BYTES_MAX), 1, self._wait_ms, next_opaque(), epoch)
            self.flights.launch(request, connection, fetch)
            return None
        fetch = Fetch(*where, request.ask_for(), 1, 0, next_opaque(), epoch)
        return self._answer(request, checked_data(connection.submit(fetch).wait(timeout_s), what))

    def _answer(self, request: FetchRequest, data: Data, *, is_early: bool = False) -> Answer:
        self._routes.answered(request.key, data.read_from)
        return Answer(data.body, data.log_end, is_early)
