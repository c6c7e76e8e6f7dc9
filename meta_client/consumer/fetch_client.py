"""Fetches messages of a partition from a broker: at once, or by a long poll (spec 8.4).

A runner waits only for messages that the broker already has. At the end of a partition, a broker with `fetch` keeps the
request until there are new ones; other brokers are asked again after a back-off.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import NamedTuple

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetched_partition import FetchedPartition
from meta_client.consumer.long_poll import LongPoll
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.position import Position, milliseconds, offset_of
from meta_client.consumer.routing import Route, Routes, SlaveLacks, suggested_slave
from meta_client.errors import NotConnected
from meta_client.net.calls import checked_broker, checked_data, checked_value, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport, Transports
from meta_client.protocol.answers import parse_offset_range
from meta_client.protocol.errors import MetaError, Moved, NotFound
from meta_client.protocol.requests import Body, Fetch, Get, Offsets
from meta_client.protocol.responses import Data
from zk.brokers.cluster import BrokerEntries

_log = logging.getLogger(__name__)

# Size of a long poll's answer: thousands may arrive at once, and are held until runners take them. Other fetches are
# bounded by the number of runners.
WAITING_BYTES_MAX = 64 * 1024


class FetchReply(NamedTuple):
    """Messages at the offset asked for. The log end is None if the broker does not tell it."""

    body: Body
    log_end: int | None = None
    is_early: bool = False  # the broker ended a long poll early


class FetchClient:
    """Fetches for one consumer. Runner threads, except `set_brokers`, `cancel` and `expire_overdue`."""

    def __init__(
        self,
        group: str,
        connections: Transports,
        assignments: Assignments,
        config: ConsumerConfig,
        on_queued: Callable[[FetchedPartition], None],
    ) -> None:
        """*on_queued* is called, usually on a reader thread, with each partition whose long poll has ended."""
        self._routes = Routes()
        self._assignments = assignments
        self._timeout_s = config.fetch_timeout_s  # of an answer, beyond the time of a long poll
        self._on_queued = on_queued
        self._group = group
        self._connections = connections
        self._wait_ms = max(1, int(config.fetch_wait_s * 1000))

    def set_brokers(self, brokers: BrokerEntries) -> None:
        """Set the brokers that are up. Long polls at brokers that are no longer chosen are cancelled."""
        self._routes.set_brokers(brokers)
        for request in self._assignments.held().values():
            if request.route not in (None, self._routes.choose(request.partition, request.suggested)):
                self.cancel(request)

    def cancel(self, request: FetchedPartition) -> None:
        """Cancel the partition's long poll, or drop its outcome."""
        poll, is_queued = self._assignments.cancel_poll(request)
        if poll is not None:
            poll.abandon()
        if is_queued:
            self._on_queued(request)

    def expire_overdue(self) -> None:
        """End the long polls without an answer."""
        for request in self._assignments.held().values():
            if (poll := request.poll) is not None and poll.is_overdue(self._timeout_s):
                self._poll_ended(request, poll, None)

    def offset_of(self, request: FetchedPartition, position: Position) -> int:
        """Return the offset of *position* in a partition. Raises MetaError.

        A broker that does not support times is read from the beginning: better too much than too little.
        """
        if (offset := offset_of(position)) is not None:
            return offset
        assert isinstance(position, datetime)
        connection = self._connect(self._choose(request), request)
        if "offsets" not in connection.capabilities(self._timeout_s).extensions:
            _log.warning(
                "the broker knows nothing of times, reading from the beginning group=%s partition=%s/%s time=%s",
                *(self._group, request.topic, request.partition, position.isoformat()),
            )
            return 0
        query = Offsets(request.topic, request.partition.number, milliseconds(position), next_opaque())
        what = f"offsets {request.topic}/{request.partition}"
        return parse_offset_range(wait_result(connection.submit(query), self._timeout_s, what).message).at

    def fetch(self, request: FetchedPartition, what: str) -> FetchReply | None:
        """Return the answer to the next fetch of *request*, or the outcome of its long poll.

        None: the request is no longer the caller's, as a long poll has begun. Raises MetaError.
        """
        poll = self._assignments.take_poll(request)
        route = request.route if poll is not None and request.route is not None else self._choose(request)
        try:
            if poll is not None:
                return self._reply_to(request, poll.data(what), is_early=poll.is_early)
            return self._send(request, route, what)
        except Moved as moved:
            self._failed(request, route)
            if not self._routes.is_final(request.partition, route, moved, request.offset):
                raise SlaveLacks(what, route, moved) from moved
            raise
        except NotFound:
            request.suggested = None  # the end, or beyond what that slave has: not a failure
            raise
        except MetaError:
            self._failed(request, route)
            raise

    def count(self, request: FetchedPartition, batch: Batch) -> None:
        """Have the messages behind *batch*, the newest of *request*, counted if somebody reads the lag."""
        after, log_end, route = batch.next_offset, request.log_end, request.route
        if log_end is None or not request.backlog.received(batch.offset, after, len(batch), log_end) or route is None:
            return
        try:
            connection = self._connect(route, request)
            if "count" in connection.capabilities(self._timeout_s).extensions:
                request.backlog.request_count(connection, after)
        except MetaError as error:
            _log.debug("not counted group=%s partition=%s/%s error=%s", self._group, *request.key, error)

    def _choose(self, request: FetchedPartition) -> Route:
        """Choose the route of *request*. Raises NotConnected."""
        if (route := self._routes.choose(request.partition, request.suggested)) is None:
            raise NotConnected(f"no broker with id {request.partition.broker_id} is up: start it, or wait")
        if request.route not in (None, route):
            _log.info("read elsewhere group=%s partition=%s/%s from=%s", self._group, *request.key, route)
        request.route = route
        return route

    def _failed(self, request: FetchedPartition, route: Route) -> None:
        self._routes.failed(request.partition, route)
        if route.slave_id is not None:
            request.suggested = None

    def _connect(self, route: Route, request: FetchedPartition) -> Transport:
        connection = self._connections.get(route.url, CONNECT_TIMEOUT_S, patient=False)
        return checked_broker(connection, connection.capabilities(self._timeout_s), request.partition.broker_id)

    def _send(self, request: FetchedPartition, route: Route, what: str) -> FetchReply | None:
        connection = self._connect(route, request)
        timeout_s = self._timeout_s
        target = request.topic, self._group, request.partition.number, request.offset
        extensions = connection.capabilities(timeout_s).extensions
        request.tells_end = "fetch" in extensions
        if not request.tells_end:
            get = Get(*target, request.ask_for(), next_opaque())
            return FetchReply(checked_value(connection.submit(get).wait(timeout_s), what).body)
        epoch = request.epoch if "owner" in extensions else None
        if request.is_at_end:
            outgoing = Fetch(*target, request.ask_for(WAITING_BYTES_MAX), 1, self._wait_ms, next_opaque(), epoch)
            self._poll(request, connection, outgoing)
            return None
        outgoing = Fetch(*target, request.ask_for(), 1, 0, next_opaque(), epoch)
        return self._reply_to(request, checked_data(connection.submit(outgoing).wait(timeout_s), what))

    def _poll(self, request: FetchedPartition, connection: Transport, outgoing: Fetch) -> None:
        """Begin a long poll; the request is no longer the caller's."""
        poll = LongPoll(connection, outgoing.opaque, outgoing.wait_ms / 1000)
        # Before it is sent: the answer may arrive before submit() returns.
        if not self._assignments.begin_poll(request, poll):
            self._on_queued(request)
            return
        try:
            connection.submit(outgoing, partial(self._poll_ended, request, poll))
        except Exception as error:  # the next round raises it
            self._poll_ended(request, poll, error)
        if request.poll is not poll:  # withdrawn before it was sent
            poll.abandon()

    def _poll_ended(self, request: FetchedPartition, poll: LongPoll, outcome: PendingReply | Exception | None) -> None:
        if self._assignments.end_poll(request, poll, outcome):
            if outcome is None:
                poll.abandon()
            self._on_queued(request)

    def _reply_to(self, request: FetchedPartition, data: Data, *, is_early: bool = False) -> FetchReply:
        request.suggested = suggested_slave(data.read_from)
        return FetchReply(data.body, data.log_end, is_early)
