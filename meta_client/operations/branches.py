"""Access to branches for `metaq txn`: at the brokers of a cluster, or in the directory of a stopped one."""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from journal.errors import JournalError
from journal.records.heuristics import HeuristicDecision
from journal.records.states import BranchState, VerbRefused
from journal.records.xid import XaKey
from journal.repair.offline import opened_store, read_state
from journal.state.journal_state import Branch, JournalState
from journal.state.transaction_store import JournalTransactionStore
from meta_client.client import Client
from meta_client.errors import NotSupported
from meta_client.logs.audit import audit_offline
from meta_client.metadata.topology import Directory
from meta_client.net.calls import wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transport
from meta_client.producer.xa_verbs import BRANCH, LEDGER, REQUEST_TIMEOUT_S, STATUS, RemoteBranch, XaVerbs
from meta_client.protocol.answers import BranchStatus, parse_status
from meta_client.protocol.branch_report import Report, decided_report, finding_report, live_report
from meta_client.protocol.errors import MetaError, RemoteProtocolError, XaError
from meta_client.protocol.requests import BranchCommand, BranchVerb, Request, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.protocol.xa import XaCode
from zk.errors import ZooKeeperError

NAME: Final = "metaq-cli"
AT_ONCE: Final = 500  # reports requested before waiting for the first
ANSWER_TIMEOUT_S: Final = 10.0  # an fsync on a busy disk


OLD_BROKER: Final = "it is no metaq broker, or an old one; of a metaq, stop it and use --dir on its data directory"
PlacedKey = tuple[XaKey, int]  # and its broker
BranchError = MetaError | ZooKeeperError | JournalError


class NoBranch(MetaError):
    """The branch does not exist, or can't be ended in its state. Look at `metaq txn list`."""


class OnlineBranches:
    """Branches at running brokers."""

    def __init__(self, client: Client, directory: Directory | None = None) -> None:
        """*directory*: where to look brokers up, instead of the client's view."""
        self.failures: dict[int, str] = {}  # brokers that could not be asked
        self.left_out: dict[int, Sequence[XaKey]] = {}  # by `listed`
        self._verbs = XaVerbs(directory or client.topology, client.connections, NAME)

    def keys(self, qualifier: str | None) -> dict[int, Sequence[XaKey]]:
        """Return by broker id the names of all branches in doubt, and of those operators ended and did not forget."""
        listing = self._verbs.list_prepared(qualifier)
        self.failures = dict(listing.failures)
        return dict(sorted(listing.keys.items()))

    def listed(self, qualifier: str | None, count: int | None = None) -> list[Report]:
        """Return a report on each of those, with its broker's id as `broker`; from older brokers only key and state.
        Of each broker on the *count* branches that began first; others are in `left_out`."""
        reports: list[Report] = []
        self.left_out = {}
        for broker_id, keys in self.keys(qualifier).items():
            asked = keys[:count]
            if len(asked) < len(keys):
                self.left_out[broker_id] = keys[len(asked) :]
            try:
                reports += (report | {"broker": broker_id} for report in self._reports(broker_id, asked))
            except (MetaError, ZooKeeperError) as error:
                self.failures[broker_id] = str(error)
        return reports

    def _reports(self, broker_id: int, keys: Sequence[XaKey]) -> list[Report]:
        connection = self._connect(broker_id)
        if BRANCH not in connection.capabilities(REQUEST_TIMEOUT_S).extensions:
            return [{"key": str(key), "state": BranchStatus.PREPARED.value} for key in keys]
        reports: list[Report] = []
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            asked = connection.submit_all([_command(BranchVerb.SHOW, key) for key in some])
            for key, reply in zip(some, asked, strict=True):
                try:
                    answer = wait_result(reply, ANSWER_TIMEOUT_S, f"show {key} on broker {broker_id}")
                except XaError as error:
                    if error.code != XaCode.XAER_NOTA:
                        raise
                    continue  # finished between the two requests
                reports.append(_parse(answer.message))
        return reports

    def show(self, key: XaKey, broker_id: int) -> Report:
        """Report on one branch. Raises MetaError, JournalError."""
        return self._call(_command(BranchVerb.SHOW, key), broker_id)

    def end_heuristically(self, key: XaKey, broker_id: int, decision: HeuristicDecision, who: str, why: str) -> Report:
        """End a branch; durable on return. Raises as show."""
        verb = BranchVerb(decision.name.lower())
        return self._call(BranchCommand(verb, key, who, why, next_opaque()), broker_id)

    def forget(self, key: XaKey, broker_id: int) -> None:
        """Drop the operator's decision and the findings. Raises as show."""
        wait_result(
            self._connect(broker_id).submit(_forget(key)), ANSWER_TIMEOUT_S, f"forget {key} on broker {broker_id}"
        )

    def show_all(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, Report | BranchError]]:
        """Yield each branch's report, or the error."""
        for place, answer in self._ask_all(places, RemoteBranch.report_request, BRANCH):
            try:
                yield place, answer if isinstance(answer, Exception) else _parse(answer.message)
            except MetaError as error:
                yield place, error

    def statuses(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, BranchStatus | BranchError]]:
        """Yield how each branch that is not listed any more ended, or the error."""
        verb = TransactionVerb.STATUS
        for place, answer in self._ask_all(places, lambda branch: branch.request(verb), STATUS):
            try:
                yield place, answer if isinstance(answer, Exception) else parse_status(answer.message)
            except MetaError as error:
                yield place, error

    def end_all(
        self, places: Sequence[PlacedKey], decision: HeuristicDecision, who: str, why: str
    ) -> Iterator[tuple[PlacedKey, BranchError | None]]:
        """End branches, and yield each with the error, if there is one; durable then."""
        verb = BranchVerb(decision.name.lower())
        for place, answer in self._ask_all(
            places, lambda branch: BranchCommand(verb, branch.key, who, why, next_opaque()), BRANCH
        ):
            yield place, answer if isinstance(answer, Exception) else None

    def forget_all(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, BranchError | None]]:
        """Do as `forget` for each, and yield it with the error, if there is one."""
        for place, answer in self._ask_all(places, lambda branch: _forget(branch.key), ""):
            yield place, answer if isinstance(answer, Exception) else None

    def _ask_all(
        self, places: Sequence[PlacedKey], request: Callable[[RemoteBranch], Request], extension: str
    ) -> Iterator[tuple[PlacedKey, Result | BranchError]]:
        """Yield the answer about each branch; AT_ONCE of them are in flight at a time."""
        for start in range(0, len(places), AT_ONCE):
            asked = {RemoteBranch(self._verbs, *place): place for place in places[start : start + AT_ONCE]}
            deadline = Deadline(ANSWER_TIMEOUT_S)
            posted = self._verbs.post_all(asked, request, deadline, extension)
            for branch, place in asked.items():
                reply = posted.get(branch)
                if reply is None:
                    yield place, NotSupported(f"broker {place[1]} can't be asked about it: {OLD_BROKER}")
                elif isinstance(reply, Exception):
                    yield place, reply
                else:
                    try:
                        yield place, wait_result(reply, deadline.remaining_s(), f"{place[0]} on broker {place[1]}")
                    except MetaError as error:
                        yield place, error

    def findings(self) -> list[Report]:
        """Return the ledgers' entries, each with `broker`; brokers that can't answer are added to `failures`."""
        found: list[Report] = []
        for broker_id in self.keys(None):
            try:
                connection = self._connect(broker_id)
                if LEDGER in connection.capabilities(REQUEST_TIMEOUT_S).extensions:
                    command = BranchCommand(BranchVerb.LEDGER, None, "", "", next_opaque())
                    answer = wait_result(connection.submit(command), ANSWER_TIMEOUT_S, f"ledger of broker {broker_id}")
                    found += (
                        report | {"broker": broker_id} for report in map(_checked_finding, _parse_list(answer.message))
                    )
            except (MetaError, ZooKeeperError) as error:
                self.failures[broker_id] = str(error)
        return found

    def _call(self, command: BranchCommand, broker_id: int) -> Report:
        connection = self._connect(broker_id)
        if BRANCH not in connection.capabilities(REQUEST_TIMEOUT_S).extensions:
            raise NotSupported(f"broker {broker_id} at {connection.url} can't be asked about a branch: {OLD_BROKER}")
        what = f"{command.verb} {command.key} on broker {broker_id}"
        return _parse(wait_result(connection.submit(command), ANSWER_TIMEOUT_S, what).message) | {"broker": broker_id}

    def _connect(self, broker_id: int) -> Transport:
        return self._verbs.connect(broker_id, Deadline(REQUEST_TIMEOUT_S))


class OfflineBranches:
    """Branches in the directory of a stopped broker, with the same methods."""

    def __init__(self, directory: Path) -> None:
        self.failures: dict[int, str] = {}
        self._directory = directory

    def keys(self, qualifier: str | None) -> dict[int, Sequence[XaKey]]:
        with read_state(self._directory) as (state, segments):
            prepared = [branch.key for branch in _prepared(state)]
            found = [key for key in (*prepared, *state.heuristics) if isinstance(key, XaKey)]
            return {segments.identity.broker_id: [key for key in found if qualifier in (None, key.qualifier)]}

    def listed(self, qualifier: str | None) -> list[Report]:
        with read_state(self._directory) as (state, segments):
            broker = {"broker": segments.identity.broker_id}
            reports = [live_report(branch, segments.read) for branch in _prepared(state)]
            reports += map(decided_report, state.heuristics.values())
        return self._of(reports, broker, qualifier)

    def findings(self) -> list[Report]:
        with read_state(self._directory) as (state, segments):
            reports = [finding_report(finding) for finding in state.ledger]
            return self._of(reports, {"broker": segments.identity.broker_id}, None)

    @staticmethod
    def _of(reports: list[Report], broker: Report, qualifier: str | None) -> list[Report]:
        return [one | broker for one in reports if qualifier in (None, one["key"].rpartition(":")[2])]

    def show(self, key: XaKey, broker_id: int) -> Report:
        known = [*self.listed(key.qualifier), *self.findings()]
        found = [one for one in known if one["key"] == str(key) and one["broker"] == broker_id]
        if not found:
            raise NoBranch(f"{self._directory} holds no branch {key} in doubt: see metaq txn list --dir")
        return found[0]

    def end_heuristically(self, key: XaKey, broker_id: int, decision: HeuristicDecision, who: str, why: str) -> Report:
        try:
            with opened_store(self._directory, version("metaq-broker")) as store:
                store.journal.wait_flushed(store.end_heuristically(store.find(key), decision, who, why).lsn)
        except (VerbRefused, ValueError) as error:  # not in doubt, or a who or why that does not fit a record
            raise NoBranch(str(error)) from error
        audit_offline(self._directory, f"branch-{decision.name.lower()}", key=key, who=who, why=why)
        return self.show(key, broker_id)

    def show_all(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, Report | BranchError]]:
        known = {(one["key"], one["broker"]): one for one in (*self.findings(), *self.listed(None))}
        for place in places:
            report = known.get((str(place[0]), place[1]))
            yield place, NoBranch(f"{self._directory} does not hold it") if report is None else report

    def statuses(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, BranchStatus | BranchError]]:
        with read_state(self._directory) as (state, segments):
            for key, broker_id in places:
                ended = state.outcomes.find(str(key)) if broker_id == segments.identity.broker_id else None
                yield (key, broker_id), BranchStatus.UNKNOWN if ended is None else BranchStatus(ended.outcome)

    def end_all(
        self, places: Sequence[PlacedKey], decision: HeuristicDecision, who: str, why: str
    ) -> Iterator[tuple[PlacedKey, BranchError | None]]:
        yield from self._each(
            places,
            lambda store, key: store.end_heuristically(store.find(key), decision, who, why).lsn,
            f"branch-{decision.name.lower()}",
            who=who,
            why=why,
        )

    def forget_all(self, places: Sequence[PlacedKey]) -> Iterator[tuple[PlacedKey, BranchError | None]]:
        yield from self._each(places, lambda store, key: store.forget(key), "branch-forget")

    def _each(
        self,
        places: Sequence[PlacedKey],
        act: Callable[[JournalTransactionStore, XaKey], int],
        what: str,
        **facts: str,
    ) -> Iterator[tuple[PlacedKey, BranchError | None]]:
        """Act on branches in one opening of the directory; durable once it has yielded the first."""
        ends: list[tuple[PlacedKey, BranchError | None]] = []
        with opened_store(self._directory, version("metaq-broker")) as store:
            lsn = None
            for key, broker_id in places:
                try:
                    lsn = act(store, key)
                    ends.append(((key, broker_id), None))
                except (VerbRefused, ValueError) as error:
                    ends.append(((key, broker_id), NoBranch(str(error))))
            if lsn is not None:
                store.journal.wait_flushed(lsn)
        for (key, _), failure in ends:
            if failure is None:
                audit_offline(self._directory, what, key=key, **facts)
        yield from ends

    def forget(self, key: XaKey, broker_id: int) -> None:
        with opened_store(self._directory, version("metaq-broker")) as store:
            store.journal.wait_flushed(store.forget(key))
        audit_offline(self._directory, "branch-forget", key=key)


Branches = OnlineBranches | OfflineBranches


def _prepared(state: JournalState) -> Iterator[Branch]:
    return (branch for branch in state.branches.values() if branch.state is BranchState.PREPARED)


def _forget(key: XaKey) -> TransactionCommand:
    # Its qualifier stands in the key: beside it, one of control characters or digits has no form on the wire.
    return TransactionCommand(key, NAME, TransactionVerb.FORGET, None, None, next_opaque())


def _command(verb: BranchVerb, key: XaKey) -> BranchCommand:
    return BranchCommand(verb, key, "", "", next_opaque())


def _parse(message: bytes) -> Report:
    reports = _parse_list(b"[%b]" % message)
    if len(reports) != 1:
        raise RemoteProtocolError(f"{message[:80]!r} is not the report of one branch")
    return reports[0]


def _checked_finding(report: Report) -> Report:
    match report:
        case {
            "state": "mixed" | "hazard",
            "finding": {"who": str(), "why": str(), "evidence": str(), "time_ms": int()},
        }:
            return report
    raise RemoteProtocolError(f"{str(report)[:80]!r} is no entry of a ledger")


def _parse_list(message: bytes) -> list[Report]:
    try:
        reports = json.loads(message)
    except ValueError as error:
        raise RemoteProtocolError(f"{message[:80]!r} is no report of a branch: {error}") from error
    if not isinstance(reports, list):
        raise RemoteProtocolError(f"{message[:80]!r} is no list of branches")
    for report in reports:
        if not isinstance(report, dict) or not {"key", "state", "messages", "bytes"} <= report.keys():
            raise RemoteProtocolError(f"{message[:80]!r} is no report of a branch")
    return reports
