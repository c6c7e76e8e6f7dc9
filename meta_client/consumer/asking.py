"""Asking a broker for the next messages of a partition: at once, or by leaving the request there (spec 8.4).

A runner waits only for what a broker has already. At the end of a partition, a broker that knows `fetch` keeps the
request until there is something; of others we ask again after a rest.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from meta_client.calls import checked_data, checked_value
from meta_client.connections import CONNECT_TIMEOUT_S, Connections
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.flights import Flights
from meta_client.errors import NotConnected
from meta_client.opaques import next_opaque
from meta_client.protocol.requests import Fetch, Get
from zk.broker_url import BrokerUrl

# What a request that waits at a broker asks for: thousands may be answered at the same moment, and all the answers
# are held until runners take them. What a runner itself asks for is bounded by the number of runners.
WAITING_BYTES_MAX = 64 * 1024


class Answer(NamedTuple):
    """What a broker has at the offset asked for. The log end is None if it does not tell."""

    body: bytes
    log_end: int | None = None
    is_early: bool = False  # it was asked to wait, and hardly did


class Asker:
    """One consumer's way to the brokers. Runner threads, but for `routes` and `flights`."""

    def __init__(
        self,
        group: str,
        connections: Connections,
        timeout_s: float,
        wait_s: float,
        landed: Callable[[FetchRequest], None],
    ) -> None:
        """*timeout_s*: how long an answer may take that the broker need not wait for; *landed* as in Flights."""
        self.timeout_s = timeout_s
        self.flights = Flights(landed)
        self.routes: Mapping[int, BrokerUrl] = {}  # where each broker id is read; swapped whole
        self._group = group
        self._connections = connections
        self._wait_ms = max(1, int(wait_s * 1000))

    def ask(self, request: FetchRequest, what: str) -> Answer | None:
        """The answer to the next fetch of *request*, or what it brought back from the broker where it waited.

        None: it waits there now, and is not the caller's any more. Raises MetaError.
        """
        if (landing := self.flights.take(request)) is not None:
            data = landing.data(what)
            return Answer(data.body, data.log_end, landing.is_early)
        broker_id = request.partition.broker_id
        if (url := self.routes.get(broker_id)) is None:
            raise NotConnected(f"no broker with id {broker_id} is up: start it, or wait")
        connection = self._connections.get(url, CONNECT_TIMEOUT_S, patient=False)
        timeout_s = self.timeout_s
        where = request.topic, self._group, request.partition.number, request.offset
        extensions = connection.capabilities(timeout_s).extensions
        if "fetch" not in extensions:
            get = Get(*where, request.ask_for(), next_opaque())
            return Answer(checked_value(connection.submit(get).wait(timeout_s), what).body)
        epoch = request.epoch if "owner" in extensions else None
        if request.is_at_end:
            fetch = Fetch(*where, request.ask_for(WAITING_BYTES_MAX), 1, self._wait_ms, next_opaque(), epoch)
            self.flights.launch(request, connection, fetch)
            return None
        fetch = Fetch(*where, request.ask_for(), 1, 0, next_opaque(), epoch)
        data = checked_data(connection.submit(fetch).wait(timeout_s), what)
        return Answer(data.body, data.log_end)
