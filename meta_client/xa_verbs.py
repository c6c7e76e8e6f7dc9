"""XA verbs on the wire: to the right broker, with every failure as an XA code (spec 2.2, 2.3)."""

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from journal.xid import XaKey, Xid
from meta_client.calls import checked_result, wait_result
from meta_client.deadline import Deadline
from meta_client.errors import ClientXaError, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.opaques import next_opaque
from meta_client.pending_reply import PendingReply
from meta_client.protocol.answers import BranchStatus, parse_keys, parse_status
from meta_client.protocol.errors import MetaError, RemoteError, RemoteProtocolError, XaError
from meta_client.protocol.requests import Transaction, TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.protocol.xa import XaCode
from meta_client.topology import Directory, no_master
from meta_client.transport import Transport, Transports
from zk.errors import ZooKeeperError

REQUEST_TIMEOUT_S = 5.0  # for each verb, as genuine clients wait (spec 2.6)

# When no answer comes in time to these, nothing was promised to anybody, so "rolled back" is what to make of it.
# All others may have acted either way, which X/Open calls a failure of the resource manager: ask again.
_MAY_ROLL_BACK = frozenset({TransactionVerb.BEGIN, TransactionVerb.PREPARE})

_log = logging.getLogger(__name__)


def topic_names(topics: Iterable[str]) -> tuple[str, ...]:
    """*topics* as they are. Raises TypeError for a text, whose letters would be taken for topics: of a broker that
    offers every name nobody would notice."""
    if isinstance(topics, str):
        raise TypeError(f"topics is the text {topics!r}: give a tuple of names, ({topics!r},)")
    return tuple(topics)


@dataclass(frozen=True, slots=True)
class Listing:
    """Who answered RECOVER: prepared branches by broker id, and why the other brokers did not answer."""

    keys: Mapping[int, tuple[XaKey, ...]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


class XaVerbs:
    """Speaks to brokers by id: to their master, wherever it is at the moment. Any thread."""

    def __init__(self, topology: Directory, connections: Transports, qualifier: str, session_id: str) -> None:
        self.qualifier = qualifier
        self._topology = topology
        self._connections = connections
        self._session_id = session_id

    def find(self, xid: Xid, topics: Collection[str], deadline: Deadline) -> tuple[int, Transport]:
        """Some broker that has all *topics*, by its id, and a connection to it. Raises XaError."""
        why = ""
        try:
            candidates = self._candidates(topics, deadline)
            random.shuffle(candidates)  # the ancestor's way to spread branches over brokers
            for broker_id in candidates:
                try:
                    return broker_id, self.connect(broker_id, deadline)
                except (ZooKeeperError, MetaError) as error:
                    why = str(error)  # nothing was sent: another broker will do
        except (ZooKeeperError, MetaError) as error:
            raise ClientXaError(XaCode.XAER_RMFAIL, str(error), f"BEGIN {xid}") from error
        why = why or f"no broker that is up has all of the topics {sorted(topics)}: start one, see `metaq topics`"
        raise ClientXaError(XaCode.XAER_RMFAIL, why, f"BEGIN {xid}")

    def keeps_order(self, connection: Transport, deadline: Deadline) -> bool:
        """Whether the broker handles the requests of a connection in their order, as every one with `mput` does."""
        try:
            return "mput" in connection.capabilities(deadline.remaining_s()).extensions
        except (ReplyTimeout, ConnectionLost) as error:
            _log.info("version not known, sending one by one broker=%s error=%s", connection.url, error)
            return False

    def ask(self, verb: TransactionVerb, key: XaKey, broker_id: int) -> Result:
        """Send one verb, wait, and return its 200. Raises XaError, a ClientXaError if the broker did not say it."""
        deadline = Deadline(REQUEST_TIMEOUT_S)
        return self.answer(verb, key, broker_id, self.post(verb, key, broker_id, deadline), deadline)

    def post(self, verb: TransactionVerb, key: XaKey, broker_id: int, deadline: Deadline) -> PendingReply:
        """Send one verb; `answer` says what its reply means. Raises XaError."""
        try:
            return self.connect(broker_id, deadline).submit(self.request(verb, key))
        except (ZooKeeperError, MetaError) as error:
            raise self.unreachable(verb, key, broker_id, error) from error

    def status(self, xid: Xid, broker_id: int) -> BranchStatus | None:
        """What the broker knows of *xid*; None if it has no `status`. Raises XaError."""
        deadline, key, verb = Deadline(REQUEST_TIMEOUT_S), XaKey(xid, self.qualifier), TransactionVerb.STATUS
        try:
            connection = self.connect(broker_id, deadline)
            if "status" not in connection.capabilities(deadline.remaining_s()).extensions:
                return None
            reply = connection.submit(self.request(verb, key))
        except (ZooKeeperError, MetaError) as error:
            raise self.unreachable(verb, key, broker_id, error) from error
        try:
            return parse_status(self.answer(verb, key, broker_id, reply, deadline).message)
        except RemoteProtocolError as error:
            raise self.unreachable(verb, key, broker_id, error) from error

    def request(self, verb: TransactionVerb, key: XaKey, timeout_seconds: int | None = None) -> Transaction:
        """*verb* as it goes on the wire."""
        return Transaction(key, self._session_id, verb, timeout_seconds, self.qualifier, next_opaque())

    def answer(
        self, verb: TransactionVerb, key: XaKey, broker_id: int, reply: PendingReply, deadline: Deadline
    ) -> Result:
        """The 200 that *reply* to *verb* is. Raises XaError, a ClientXaError if the broker did not say it."""
        try:
            response = reply.wait(deadline.remaining_s())
            if isinstance(response, Result) and response.is_success:
                return response
            return checked_result(response, _what(verb, key.xid, broker_id))
        except XaError:
            raise
        except MetaError as error:
            raise self._failure(verb, error, _what(verb, key.xid, broker_id)) from error

    def _failure(self, verb: TransactionVerb, error: MetaError, what: str) -> ClientXaError:
        """The XA code of what is no XA answer."""
        match error:
            case RemoteError():
                code = XaCode.XAER_RMERR if error.text else XaCode.XAER_RMFAIL
                return ClientXaError(code, error.text or "the broker gave no reason: see its log", what)
            case ReplyTimeout():
                code = XaCode.XA_RBTIMEOUT if verb in _MAY_ROLL_BACK else XaCode.XAER_RMFAIL
                return ClientXaError(code, str(error), what)
        return ClientXaError(XaCode.XAER_RMFAIL, str(error), what)  # the connection broke, or broke the protocol

    def unreachable(self, verb: TransactionVerb, key: XaKey, broker_id: int, error: Exception) -> ClientXaError:
        """What it means that *verb* could not be sent."""
        return ClientXaError(XaCode.XAER_RMFAIL, str(error), _what(verb, key.xid, broker_id))

    def connect(self, broker_id: int, deadline: Deadline) -> Transport:
        """A connection to the master of *broker_id*. Raises NotConnected, ZooKeeperError."""
        url = self._topology.master_url(broker_id)
        if url is not None:
            try:
                return self._connections.get(url, deadline.remaining_s())
            except NotConnected as error:
                _log.info("looking a broker up again broker=%d error=%s", broker_id, error)
        if (now := self._topology.read_masters().get(broker_id)) is None:
            raise no_master(broker_id)
        return self._connections.get(now, deadline.remaining_s())

    def list_prepared(self, qualifier: str | None) -> Listing:
        """Ask every broker for its prepared branches, under *qualifier* or all. Those that can't be asked, or have
        crashed and are not back, are named in the failures. Raises ZooKeeperError."""
        masters = self._topology.read_masters()
        failures = {broker_id: str(no_master(broker_id)) for broker_id in self._topology.read_absent(masters)}
        keys: dict[int, tuple[XaKey, ...]] = {}
        deadline = Deadline(REQUEST_TIMEOUT_S)
        waiting: dict[int, Callable[[], Result]] = {}
        for broker_id, url in masters.items():
            what = f"RECOVER on broker {broker_id}"
            try:
                connection = self._connections.get(url, deadline.remaining_s())
                reply = connection.submit(self._recover(qualifier))
            except (ConnectionLost, TooManyRequests) as error:
                failures[broker_id] = f"{what}: {error}"
            else:
                waiting[broker_id] = _waiter(reply, deadline, what)
        for broker_id, wait in waiting.items():
            try:
                listed = parse_keys(wait().message)
            except MetaError as error:
                failures[broker_id] = str(error)
                continue
            keys[broker_id] = tuple(
                key for key in listed if isinstance(key, XaKey) and qualifier in (None, key.qualifier)
            )
        return Listing(keys, dict(sorted(failures.items())))

    def _recover(self, qualifier: str | None) -> Transaction:
        """RECOVER, of every qualifier if there is none."""
        return Transaction(None, self._session_id, TransactionVerb.RECOVER, None, qualifier, next_opaque())

    def _candidates(self, topics: Collection[str], deadline: Deadline) -> list[int]:
        if not topics:
            return sorted(self._topology.read_masters())
        brokers = [self._topology.view(topic, deadline.remaining_s()).by_broker.keys() for topic in topics]
        return sorted(set(brokers[0]).intersection(*brokers))


def _what(verb: TransactionVerb, xid: Xid, broker_id: int) -> str:
    return f"{verb} {xid} on broker {broker_id}"


def _waiter(reply: PendingReply, deadline: Deadline, what: str) -> Callable[[], Result]:
    return lambda: wait_result(reply, deadline.remaining_s(), what)
