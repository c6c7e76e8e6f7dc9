"""A local transaction: messages to one broker, visible all at once or never (spec 2.4, 7.5).

A broker binds it to one connection and rolls it back when that ends, so it holds the connection, not its address.
"""

import itertools
import logging
from enum import Enum
from typing import Self

from journal.records.xid import LocalKey
from meta_client.errors import (
    ConnectionLost,
    Destination,
    NoBroker,
    NotConnected,
    ReplyTimeout,
    SendRefused,
    TooManyRequests,
    TransactionFailed,
    TransactionMisuse,
    TransactionUnknown,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.backoff import quota_backoff_s
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transport, Transports
from meta_client.producer.outgoing import Outgoing
from meta_client.producer.results import SendResult
from meta_client.protocol.answers import is_not_replicated
from meta_client.protocol.errors import QuotaExceeded, RemoteError, RemoteProtocolError
from meta_client.protocol.requests import TransactionCommand, TransactionVerb
from zk.forks import invalidate_after_fork, skip_after_fork
from zk.tree.nodes import Partition

REQUEST_TIMEOUT_S = 5.0  # for each transaction request, as genuine clients wait (spec 2.6)

_log = logging.getLogger(__name__)


class LocalState(Enum):
    EMPTY = "nothing was sent, no broker knows it"
    ACTIVE = "begun at a broker"
    ROLLBACK_ONLY = "the fate of one of its messages is unknown: it can only be rolled back"
    FINISHED = "committed, rolled back, or lost"


class LocalTransaction:
    """A local transaction of one producer; Producer.transaction() makes it. Use as a context manager: leaving the block
    commits, an exception rolls back. The producer's thread alone."""

    def __init__(self, key: LocalKey, timeout_seconds: int | None, connections: Transports) -> None:
        self.key = key
        self.state = LocalState.EMPTY
        self._timeout_seconds = timeout_seconds
        self._connections = connections
        self._connection: Transport | None = None
        self._broker_id: int | None = None
        self._in_block = False
        invalidate_after_fork(self)

    @property
    def is_current(self) -> bool:
        """True while its producer sends into it: until it is finished and its block, if any, is left."""
        return self._in_block or self.state is not LocalState.FINISHED

    @property
    def broker_id(self) -> int | None:
        """Id of its broker; None until the first message has chosen one."""
        return self._broker_id

    def put(self, message: Outgoing, deadline: Deadline) -> SendResult:
        """Add a message; the first one chooses the broker and begins. Raises SendFailed, TransactionFailed.

        A refused message is not in the transaction; one whose fate is unknown makes it rollback-only.
        """
        if self.state in (LocalState.ROLLBACK_ONLY, LocalState.FINISHED):
            raise TransactionFailed(f"transaction {self.key}: {self.state.value}: begin another one")
        partition = message.choice.choose(message.view, message.wanted, self._broker_id)
        connection = self._connection
        if connection is None:
            connection = self._begin(message.view, partition, deadline)
        pending = message.submit(connection, partition, self.key)
        self.state = LocalState.ROLLBACK_ONLY  # until its answer is here: a cancelled wait leaves it unknown
        try:
            place = pending.wait(deadline.remaining_s())
        except SendRefused:
            self.state = LocalState.ACTIVE
            raise
        self.state = LocalState.ACTIVE
        return place

    def commit(self) -> None:
        """Make the messages visible; durable at the broker on return. Does nothing without messages.

        Raises TransactionFailed (nothing is visible, nor will be), TransactionUnknown, TransactionMisuse.
        """
        match self.state:
            case LocalState.FINISHED:
                raise TransactionMisuse(f"transaction {self.key} is over: begin another one")
            case LocalState.ROLLBACK_ONLY:
                self.rollback()
                raise TransactionFailed(
                    f"transaction {self.key} was rolled back, because no answer came for one of its messages: "
                    "do its work again"
                )
            case LocalState.EMPTY:
                self.state = LocalState.FINISHED
                return
        self.state = LocalState.FINISHED  # before the request: only one commit is ever sent
        where = f"commit of transaction {self.key} on {self._live_connection().url}"
        try:
            self._call(TransactionVerb.COMMIT_ONE_PHASE)
        except (NotConnected, TooManyRequests, RemoteError) as error:
            if isinstance(error, RemoteError) and is_not_replicated(error.text):
                raise TransactionUnknown(f"{where}: {error}") from error
            self.state = LocalState.ROLLBACK_ONLY
            self.rollback()  # a broker too busy to commit may still hold it
            raise TransactionFailed(f"{where}: {error}: it is rolled back, do its work again") from error
        except (ConnectionLost, ReplyTimeout, RemoteProtocolError) as error:
            raise TransactionUnknown(f"{where}: {error}") from error

    def rollback(self) -> None:
        """Drop the messages. Never fails: a broker that can't be reached drops them when the connection ends."""
        state, self.state = self.state, LocalState.FINISHED
        if state in (LocalState.EMPTY, LocalState.FINISHED):
            return
        try:
            self._call(TransactionVerb.ROLLBACK)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, RemoteProtocolError, RemoteError) as error:
            _log.warning("transaction left to the broker to roll back xid=%s error=%s", self.key, error)

    def __enter__(self) -> Self:
        """Raises TransactionMisuse for a transaction that is over, or whose block is entered already."""
        if self._in_block:
            raise TransactionMisuse(f"transaction {self.key} has been entered: its block ends it, begin another one")
        if self.state is LocalState.FINISHED:
            raise TransactionMisuse(f"transaction {self.key} is over: begin another one")
        self._in_block = True
        return self

    @skip_after_fork
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._in_block = False
        if kind is not None:
            self.rollback()
        elif self.state is not LocalState.FINISHED:
            self.commit()

    def _begin(self, view: TopicView, partition: Partition, deadline: Deadline) -> Transport:
        url = view.urls[partition.broker_id]
        where = Destination(view.topic, partition, url)
        try:
            connection = self._connections.get(url, deadline.remaining_s())
            checked_broker(connection, connection.capabilities(deadline.remaining_s()), partition.broker_id)
            for refusals in itertools.count(1):
                reply = connection.submit(self._request(TransactionVerb.BEGIN))
                try:
                    wait_result(reply, min(deadline.remaining_s(), REQUEST_TIMEOUT_S), f"BEGIN {self.key}")
                    break
                except QuotaExceeded:
                    if (pause_s := quota_backoff_s(refusals)) >= deadline.remaining_s():
                        raise
                    self._connections.sleep(pause_s)
        except RemoteError as error:
            raise SendRefused(f"the transaction did not begin: {error}", where, error.status) from error
        except (ConnectionLost, ReplyTimeout, TooManyRequests, RemoteProtocolError) as error:
            raise NoBroker(f"the transaction did not begin: {error}", where) from error
        self._connection = connection
        self._broker_id = partition.broker_id
        self.state = LocalState.ACTIVE
        return connection

    def _call(self, verb: TransactionVerb) -> None:
        reply = self._live_connection().submit(self._request(verb))
        wait_result(reply, REQUEST_TIMEOUT_S, f"{verb} {self.key}")

    def _live_connection(self) -> Transport:
        assert self._connection is not None
        return self._connection

    def _request(self, verb: TransactionVerb) -> TransactionCommand:
        timeout = self._timeout_seconds if verb is TransactionVerb.BEGIN else None
        return TransactionCommand(self.key, self.key.session_id, verb, timeout, None, next_opaque())
