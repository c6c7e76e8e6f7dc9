"""XA verbs on the wire: addressed to the right broker, every failure as an XA code (spec 2.2, 2.3)."""

import logging
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX
from journal.records.ledger import EVIDENCE_BYTES_MAX
from journal.records.xid import XaKey, Xid
from meta_client.errors import BranchRefused, ClientXaError, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.metadata.topology import Directory, no_master
from meta_client.net.calls import checked_broker, checked_result, wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport, Transports
from meta_client.protocol.answers import BranchStatus, parse_keys, parse_status
from meta_client.protocol.errors import (
    MetaError,
    QuotaExceeded,
    RemoteError,
    RemoteProtocolError,
    XaError,
    printable_line,
)
from meta_client.protocol.requests import BranchCommand, BranchVerb, Request, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.protocol.trace_context import is_traceparent
from meta_client.protocol.xa import XaCode
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

REQUEST_TIMEOUT_S = 5.0  # for each verb, as genuine clients wait (spec 2.6)
AT_QUOTA_S = 5.0  # after a refusal, so long each BEGIN is awaited
BRANCH = "branch"  # extension of a broker that tells of its branches
LEDGER = "ledger"  # extension of a broker that stores findings
STATUS = "status"  # extension of a broker that tells how a branch ended

# Without a timely answer to these nothing was promised, so the branch counts as rolled back. All other verbs may have
# acted or not, which X/Open calls a failure of the resource manager: ask again.
_MAY_ROLL_BACK = frozenset({TransactionVerb.BEGIN, TransactionVerb.PREPARE})

VERSION_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


def topic_names(topics: Iterable[str]) -> tuple[str, ...]:
    """Return *topics* as a tuple. Raises TypeError for a str, whose letters would be taken for topics: a broker that
    offers every name would accept them."""
    if isinstance(topics, str):
        raise TypeError(f"topics is the text {topics!r}: give a tuple of names, ({topics!r},)")
    return tuple(topics)


@dataclass(frozen=True, slots=True)
class Listing:
    """Result of RECOVER: prepared branches by broker id, and by broker id why the others did not answer."""

    keys: Mapping[int, tuple[XaKey, ...]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


class XaVerbs:
    """Finds brokers by id, at their current master, and the branches there. Any thread."""

    def __init__(self, topology: Directory, connections: Transports, session_id: str) -> None:
        self._topology = topology
        self._connections = connections
        self.session_id = session_id
        self._refused_at: dict[int, float] = {}  # by broker, when its quota last refused a branch; monotonic

    def find(self, xid: Xid, topics: Collection[str], deadline: Deadline) -> tuple[int, Transport]:
        """Return a broker that has all *topics*, by id, and a connection to it. Raises XaError."""
        why = ""
        try:
            candidates = self._candidates(topics, deadline)
            if len(candidates) > 1:
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
        """Return True if the broker handles the requests of a connection in order, as every one with `mput` does."""
        try:
            return "mput" in connection.capabilities(deadline.remaining_s()).extensions
        except (ReplyTimeout, ConnectionLost) as error:
            _log.info("version not known, sending one by one broker=%s error=%s", connection.url, error)
            return False

    def is_at_quota(self, broker_id: int) -> bool:
        """Return True if the broker has refused a branch a moment ago: await its answer to BEGIN."""
        return time.monotonic() - self._refused_at.get(broker_id, -math.inf) < AT_QUOTA_S

    def refused(self, broker_id: int) -> None:
        """Note that a broker's quota has refused a branch."""
        self._refused_at[broker_id] = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait before a verb is sent again."""
        self._connections.sleep(seconds)

    def connect(self, broker_id: int, deadline: Deadline) -> Transport:
        """Return a connection to the master of *broker_id*. Raises ConnectionLost, ReplyTimeout, ZooKeeperError."""
        url = self._topology.master_url(broker_id)
        if url is not None:
            try:
                return self._get(broker_id, url, deadline)
            except NotConnected as error:
                _log.info("looking a broker up again broker=%d error=%s", broker_id, error)
        if (now := self._topology.read_masters().get(broker_id)) is None:
            raise no_master(broker_id)
        return self._get(broker_id, now, deadline)

    def _get(self, broker_id: int, url: BrokerUrl, deadline: Deadline) -> Transport:
        connection = self._connections.get(url, deadline.remaining_s())
        return checked_broker(connection, connection.capabilities(deadline.remaining_s()), broker_id)

    def list_prepared(self, qualifier: str | None, masters: Mapping[int, BrokerUrl] | None = None) -> Listing:
        """Ask every broker, or *masters* alone, for its prepared branches, under *qualifier* or all. Brokers that can't
        be asked, or crashed and are not back, are in the failures. Raises ZooKeeperError."""
        failures: dict[int, str] = {}
        if masters is None:
            masters = self._topology.read_masters()
            failures = {broker_id: str(no_master(broker_id)) for broker_id in self._topology.read_absent(masters)}
        keys: dict[int, tuple[XaKey, ...]] = {}
        waiting: dict[int, tuple[Transport, PendingReply]] = {}
        for broker_id, url in masters.items():
            command = TransactionCommand(None, self.session_id, TransactionVerb.RECOVER, None, qualifier, next_opaque())
            try:
                connection = self._connections.get(url, REQUEST_TIMEOUT_S)  # each has its own time
                waiting[broker_id] = connection, connection.submit(command)
            except (ConnectionLost, TooManyRequests) as error:
                failures[broker_id] = f"RECOVER on broker {broker_id}: {error}"
        deadline = Deadline(REQUEST_TIMEOUT_S)
        for broker_id, (connection, reply) in waiting.items():
            try:
                answer = wait_result(reply, deadline.remaining_s(), f"RECOVER on broker {broker_id}")
                checked_broker(connection, connection.capabilities(VERSION_TIMEOUT_S), broker_id)
                listed = parse_keys(answer.message)
            except MetaError as error:
                failures[broker_id] = str(error)
                continue
            keys[broker_id] = tuple(
                key for key in listed if isinstance(key, XaKey) and qualifier in (None, key.qualifier)
            )
        return Listing(keys, dict(sorted(failures.items())))

    def post_all(
        self,
        branches: Iterable["RemoteBranch"],
        request: Callable[["RemoteBranch"], Request],
        timeout_s: float,
        extension: str = "",
    ) -> dict["RemoteBranch", PendingReply | MetaError | ZooKeeperError]:
        """Send a *request* about each of *branches*, those of one broker together; return the pending reply of each, or
        the reason why nothing was sent. Leaves out those whose broker lacks *extension*. Waits *timeout_s* at most for
        each broker, so that one that hangs takes no other's time: begin the wait for replies afterwards."""
        found: dict[RemoteBranch, PendingReply | MetaError | ZooKeeperError] = {}
        by_broker: dict[int, list[RemoteBranch]] = defaultdict(list)
        for branch in branches:
            by_broker[branch.broker_id].append(branch)
        for broker_id, some in by_broker.items():
            deadline = Deadline(timeout_s)
            try:
                connection = self.connect(broker_id, deadline)
                if not extension or extension in connection.capabilities(deadline.remaining_s()).extensions:
                    found.update(zip(some, connection.submit_all([request(one) for one in some]), strict=True))
            except (ZooKeeperError, MetaError) as error:
                found.update(dict.fromkeys(some, error))
        return found

    def _candidates(self, topics: Collection[str], deadline: Deadline) -> list[int]:
        if not topics:
            return sorted(self._topology.read_masters())
        brokers = [self._topology.view(topic, deadline.remaining_s()).by_broker.keys() for topic in topics]
        return sorted(set(brokers[0]).intersection(*brokers))


@dataclass(slots=True, eq=False)
class RemoteBranch:
    """A branch at a broker: sends verbs about it. Any thread."""

    verbs: XaVerbs = field(repr=False)
    key: XaKey
    broker_id: int

    def call(self, verb: TransactionVerb, timeout_s: float = REQUEST_TIMEOUT_S) -> Result:
        """Send one verb, wait, and return its successful result. Raises XaError; a ClientXaError if the code is not the
        broker's."""
        deadline = Deadline(timeout_s)
        return self.await_reply(verb, self.post(verb, deadline), deadline)

    def post(self, verb: TransactionVerb, deadline: Deadline, *, is_urgent: bool = True) -> PendingReply:
        """Send one verb; `await_reply` interprets its reply. *is_urgent*: as in Connection.submit. Raises XaError."""
        try:
            return self.verbs.connect(self.broker_id, deadline).submit(self.request(verb), is_urgent=is_urgent)
        except (ZooKeeperError, MetaError) as error:
            raise self.unreachable(verb, error) from error

    def status(self) -> BranchStatus | None:
        """Return the broker's status of the branch; None if it has no `status`. Raises XaError."""
        deadline, verb = Deadline(REQUEST_TIMEOUT_S), TransactionVerb.STATUS
        try:
            connection = self.verbs.connect(self.broker_id, deadline)
            if STATUS not in connection.capabilities(deadline.remaining_s()).extensions:
                return None
            reply = connection.submit(self.request(verb))
        except (ZooKeeperError, MetaError) as error:
            raise self.unreachable(verb, error) from error
        return self.await_status(reply, deadline)

    def await_status(self, reply: PendingReply, deadline: Deadline) -> BranchStatus:
        """Wait for *reply* to STATUS. Raises XaError."""
        verb = TransactionVerb.STATUS
        try:
            return parse_status(self.await_reply(verb, reply, deadline).message)
        except RemoteProtocolError as error:
            raise self.unreachable(verb, error) from error

    def report(self) -> dict[str, Any]:
        """Return what the broker tells of the branch, as branch_report.py writes it; nothing of a broker without
        that. Raises XaError."""
        answer = self._ask(BRANCH, self.report_request())
        return {} if answer is None else self._report_in(answer)

    def report_request(self) -> BranchCommand:
        return BranchCommand(BranchVerb.SHOW, self.key, "", "", next_opaque())

    def await_report(self, reply: PendingReply, deadline: Deadline) -> dict[str, Any]:
        """Wait for *reply* to `report_request`. Raises XaError."""
        try:
            return self._report_in(wait_result(reply, deadline.remaining_s(), self._what(BranchVerb.SHOW)))
        except XaError:
            raise
        except MetaError as error:
            raise self.unreachable(BranchVerb.SHOW, error) from error

    def _report_in(self, answer: Result) -> dict[str, Any]:
        try:
            return msgspec.json.decode(answer.message, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self.unreachable(BranchVerb.SHOW, error) from error

    def traceparent(self) -> str | None:
        """Return the trace context of the live branch's first message; None: there is none, or the broker does not
        tell."""
        try:
            return traceparent_in(self.report())
        except XaError:
            return None

    def record_finding(self, verb: BranchVerb, who: str, why: str, evidence: str) -> bool:
        """Put a finding about the branch on the broker's ledger (MIXED, HAZARD); durable on return. Texts that are too
        long are cut. False: this broker has no ledger. Raises XaError."""
        who, why, evidence = _cut(who, WHO_BYTES_MAX), _cut(why, WHY_BYTES_MAX), _cut(evidence, EVIDENCE_BYTES_MAX)
        command = BranchCommand(verb, self.key, who, why, next_opaque(), evidence)
        return self._ask(LEDGER, command) is not None

    def _ask(self, extension: str, command: BranchCommand) -> Result | None:
        """Return the answer to *command*; None if the broker lacks *extension*. Raises XaError."""
        deadline = Deadline(REQUEST_TIMEOUT_S)
        try:
            connection = self.verbs.connect(self.broker_id, deadline)
            if extension not in connection.capabilities(deadline.remaining_s()).extensions:
                return None
            return wait_result(connection.submit(command), deadline.remaining_s(), self._what(command.verb))
        except XaError:
            raise
        except (ZooKeeperError, MetaError) as error:
            raise self.unreachable(command.verb, error) from error

    def request(self, verb: TransactionVerb, timeout_seconds: int | None = None) -> TransactionCommand:
        return TransactionCommand(
            self.key, self.verbs.session_id, verb, timeout_seconds, self.key.qualifier, next_opaque()
        )

    def await_reply(self, verb: TransactionVerb, reply: PendingReply, deadline: Deadline) -> Result:
        """Wait for *reply* to *verb* and return its successful result. Raises XaError; a ClientXaError if the code is
        not the broker's."""
        try:
            response = reply.wait(deadline.remaining_s())
            if isinstance(response, Result) and response.is_success:
                return response
            return checked_result(response, self._what(verb))
        except XaError:
            raise
        except MetaError as error:
            if verb is TransactionVerb.BEGIN and isinstance(error, QuotaExceeded):
                self.verbs.refused(self.broker_id)
                raise BranchRefused(XaCode.XAER_RMFAIL, printable_line(error.text), self._what(verb)) from error
            raise self._failure(verb, error) from error

    def _failure(self, verb: TransactionVerb, error: MetaError) -> ClientXaError:
        """Return *error*, which is no XA answer, as an XA code."""
        what = self._what(verb)
        match error:
            case RemoteError():
                code = XaCode.XAER_RMERR if error.text else XaCode.XAER_RMFAIL
                return ClientXaError(code, error.text or "the broker gave no reason: see its log", what)
            case ReplyTimeout():
                code = XaCode.XA_RBTIMEOUT if verb in _MAY_ROLL_BACK else XaCode.XAER_RMFAIL
                return ClientXaError(code, str(error), what)
        return ClientXaError(XaCode.XAER_RMFAIL, str(error), what)  # the connection broke, or broke the protocol

    def unreachable(self, verb: TransactionVerb | BranchVerb, error: Exception) -> ClientXaError:
        """Return the error for a *verb* that could not be sent."""
        return ClientXaError(XaCode.XAER_RMFAIL, str(error), self._what(verb))

    def _what(self, verb: TransactionVerb | BranchVerb) -> str:
        return f"{verb} {self.key.xid} on broker {self.broker_id}"


def traceparent_in(report: Mapping[str, Any]) -> str | None:
    """Return the trace context of the first message in a branch's report, if there is one."""
    found = [message.get("traceparent") for message in report.get("first_messages", [])]
    return next((one for one in found if isinstance(one, str) and is_traceparent(one)), None)


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")
