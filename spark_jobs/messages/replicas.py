"""Fetches messages of one partition from the replica that its broker names, as consumers do: so a long read is left to
the slaves, and a master's disk to writes. One task's own.

Offsets are the master's. A slave that fails, or lacks messages, is left for the master; without a master slaves serve
alone.
"""

import logging
from typing import Final

from meta_client.consumer.routing import Route, Routes, suggested_slave
from meta_client.net.calls import checked_broker, checked_data, checked_value
from meta_client.net.connections import CONNECT_TIMEOUT_S, Connections
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transport
from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from meta_client.protocol.requests import Fetch, Get
from spark_jobs.messages.cluster import ANSWER_TIMEOUT_S, GROUP
from zk.brokers.cluster import BrokerEntry
from zk.tree.nodes import Partition

FETCH_BYTES: Final = DATA_BYTES_MAX + HEADER_BYTES  # a whole message at least

_log = logging.getLogger(__name__)


class ReplicaReader:
    def __init__(self, connections: Connections, topic: str, partition: Partition, replicas: BrokerEntry) -> None:
        """*replicas*: those that are up, one at least."""
        self._connections = connections
        self._topic = topic
        self._partition = partition
        self._master = replicas.master
        self._routes = Routes()
        self._routes.set_brokers({partition.broker_id: replicas})
        self._suggested: int | None = None  # the slave that the last answer named

    def connection(self) -> Transport:
        """Return a connection to the replica that is read next. Raises NotConnected."""
        return self._connect(self._next())

    def fetch(self, offset: int) -> bytes:
        """Return messages from *offset* on, none if nothing is stored there yet. Raises Moved, NotFound, MetaError."""
        route = self._next()
        if route.slave_id is None or self._master is None:
            return self._fetch_from(route, offset)
        try:
            if body := self._fetch_from(route, offset):
                return body
            reason = "it has less"
        except MetaError as error:
            reason = str(error)
        _log.info("read from the master instead of %s: %s", route, reason)
        self._routes.failed(self._partition, route)
        return self._fetch_from(Route(self._master), offset)

    def _next(self) -> Route:
        route = self._routes.choose(self._partition, self._suggested)
        assert route is not None
        return route

    def _connect(self, route: Route) -> Transport:
        connection = self._connections.get(route.url, CONNECT_TIMEOUT_S)
        return checked_broker(connection, connection.capabilities(ANSWER_TIMEOUT_S), self._partition.broker_id)

    def _fetch_from(self, route: Route, offset: int) -> bytes:
        connection = self._connect(route)
        what = f"get {self._topic}/{self._partition} at {offset} from {route}"
        target = self._topic, GROUP, self._partition.number, offset, FETCH_BYTES
        if "fetch" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
            return bytes(
                checked_value(connection.submit(Get(*target, next_opaque())).wait(ANSWER_TIMEOUT_S), what).body
            )
        fetch = Fetch(*target, 1, 0, next_opaque())
        data = checked_data(connection.submit(fetch).wait(ANSWER_TIMEOUT_S), what)
        self._suggested = suggested_slave(data.read_from)
        return bytes(data.body)
