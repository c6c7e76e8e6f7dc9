"""Access to branches for `metaq txn`: at the brokers of a cluster, or in the directory of a stopped one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

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
from meta_client.net.calls import wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.operations.report_parsing import parse_ledger, parse_report
from meta_client.producer.xa_verbs import BRANCH, LEDGER, REQUEST_TIMEOUT_S, STATUS, RemoteBranch, XaVerbs
from meta_client.protocol.answers import BranchStatus, parse_status
from meta_client.protocol.branch_report import Report, decided_report, finding_report, live_report
from meta_client.protocol.errors import MetaError, RemoteProtocolError, XaError
from meta_client.protocol.requests import BranchCommand, BranchVerb, Request, TransactionCommand, TransactionVerb
from meta_client.protocol.xa import XaCode
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

NAME: Final = "metaq-cli"
AT_ONCE: Final = 500  # branches that are asked about before waiting for the first answer
ANSWER_TIMEOUT_S: Final = 10.0  # an fsync on a busy disk


OLD_BROKER: Final = "it is no metaq broker, or an old one; of a metaq, stop it and use --dir on its data directory"
PlacedKey = tuple[XaKey, int]  # and its broker
BranchError = MetaError | ZooKeeperError | JournalError
T = TypeVar("T")
Answered = Iterator[tuple[PlacedKey, T | BranchError]]  # about each branch, or the error


class NoBranch(MetaError):
    """The branch does not exist, or can't be ended in its state. Look at `metaq txn list`."""


class Branches(ABC):
    """Branches in doubt, and those that operators ended and did not forget."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}  # brokers that could not be asked, or whose answer can't be read

    @abstractmethod
    def keys(self, qualifier: str | None) -> dict[int, Sequence[XaKey]]:
        """Return by broker id the names of all of them."""

    @abstractmethod
    def listed(self, qualifier: str | None) -> list[Report]:
        """Return a report on each of them, with its broker's id as `broker`; from older brokers only key and state."""

    @abstractmethod
    def findings(self) -> list[Report]:
        """Return the ledgers' entries, each with `broker`."""

    @abstractmethod
    def show_all(self, places: Sequence[PlacedKey]) -> Answered[Report]:
        """Yield each branch's report, with `broker`."""

    @abstractmethod
    def statuses(self, places: Sequence[PlacedKey]) -> Answered[BranchStatus]:
        """Yield how each branch that is not listed any more ended."""

    @abstractmethod
    def end_all(self, places: Sequence[PlacedKey], decision: HeuristicDecision, who: str, why: str) -> Answered[Report]:
        """End branches, and yield each one's report; durable then."""

    @abstractmethod
    def forget_all(self, places: Sequence[PlacedKey]) -> Answered[None]:
        """Drop operators' decisions and findings about branches, and yield each; durable then."""

    def show(self, key: XaKey, broker_id: int) -> Report:
        """Report on one branch. Raises MetaError, ZooKeeperError, JournalError."""
        return _only(self.show_all([(key, broker_id)]))

    def end_heuristically(self, key: XaKey, broker_id: int, decision: HeuristicDecision, who: str, why: str) -> Report:
        """End a branch; durable on return. Raises as show."""
        return _only(self.end_all([(key, broker_id)], decision, who, why))

    def forget(self, key: XaKey, broker_id: int) -> None:
        """Drop the operator's decision and the findings. Raises as show."""
        _only(self.forget_all([(key, broker_id)]))


class OnlineBranches(Branches):
    """Branches at running brokers."""

    def __init__(self, client: Client, masters: Mapping[int, BrokerUrl] | None = None) -> None:
        """*masters*: the brokers to list branches of, instead of all."""
        super().__init__()
        self.left_out: dict[int, Sequence[XaKey]] = {}  # by `listed`
        self._verbs = XaVerbs(client.topology, client.connections, NAME)
        self._masters = masters

    def keys(self, qualifier: str | None) -> dict[int, Sequence[XaKey]]:
        listing = self._verbs.list_prepared(qualifier, self._masters)
        self.failures = dict(listing.failures)
        return dict(sorted(listing.keys.items()))

    def listed(self, qualifier: str | None, count: int | None = None) -> list[Report]:
        """Report on the *count* branches of each broker that began first; others are in `left_out`."""
        reports: list[Report] = []
        self.left_out = {}
        for broker_id, keys in self.keys(qualifier).items():
            asked = keys[:count]
            if len(asked) < len(keys):
                self.left_out[broker_id] = keys[len(asked) :]
            try:
                reports += list(self._reports([(key, broker_id) for key in asked]))
            except (MetaError, ZooKeeperError) as error:
                self.failures[broker_id] = str(error)
        return reports

    def _reports(self, places: Sequence[PlacedKey]) -> Iterator[Report]:
        for (key, broker_id), report in self.show_all(places):
            if isinstance(report, NotSupported):
                yield {"key": str(key), "state": BranchStatus.PREPARED.value, "broker": broker_id}
            elif isinstance(report, RemoteProtocolError):
                self.failures[broker_id] = str(report)
            elif not isinstance(report, Exception):
                yield report
            elif not is_gone(report):  # else it was finished between the two requests
                raise report

    def show_all(self, places: Sequence[PlacedKey]) -> Answered[Report]:
        return self._ask_all(places, RemoteBranch.report_request, BRANCH, _report_of)

    def statuses(self, places: Sequence[PlacedKey]) -> Answered[BranchStatus]:
        return self._ask_all(
            places,
            lambda branch: branch.request(TransactionVerb.STATUS),
            STATUS,
            lambda message, _: parse_status(message),
        )

    def end_all(self, places: Sequence[PlacedKey], decision: HeuristicDecision, who: str, why: str) -> Answered[Report]:
        verb = BranchVerb(decision.name.lower())
        return self._ask_all(
            places, lambda branch: BranchCommand(verb, branch.key, who, why, next_opaque()), BRANCH, _report_of
        )

    def forget_all(self, places: Sequence[PlacedKey]) -> Answered[None]:
        return self._ask_all(places, _forget, "", lambda message, broker_id: None)

    def _ask_all(
        self,
        places: Sequence[PlacedKey],
        request: Callable[[RemoteBranch], Request],
        extension: str,
        read: Callable[[bytes, int], T],
    ) -> Answered[T]:
        """Yield the answer about each branch, as *read* reads it; AT_ONCE of them are in flight at a time."""
        for start in range(0, len(places), AT_ONCE):
            asked = {RemoteBranch(self._verbs, *place): place for place in places[start : start + AT_ONCE]}
            posted = self._verbs.post_all(asked, request, ANSWER_TIMEOUT_S, extension)
            deadline = Deadline(ANSWER_TIMEOUT_S)
            for branch, place in asked.items():
                reply = posted.get(branch)
                if reply is None:
                    yield place, NotSupported(f"broker {place[1]} can't be asked about a branch: {OLD_BROKER}")
                elif isinstance(reply, Exception):
                    yield place, reply
                else:
                    try:
                        what = f"{place[0]} on broker {place[1]}"
                        yield place, read(wait_result(reply, deadline.remaining_s(), what).message, place[1])
                    except MetaError as error:
                        yield place, error

    def findings(self) -> list[Report]:
        found: list[Report] = []
        for broker_id in self.keys(None):
            sender = f"broker {broker_id}"
            try:
                connection = self._verbs.connect(broker_id, Deadline(REQUEST_TIMEOUT_S))
                if LEDGER in connection.capabilities(REQUEST_TIMEOUT_S).extensions:
                    command = BranchCommand(BranchVerb.LEDGER, None, "", "", next_opaque())
                    answer = wait_result(connection.submit(command), ANSWER_TIMEOUT_S, f"ledger of {sender}")
                    found += (report | {"broker": broker_id} for report in parse_ledger(answer.message, sender))
            except (MetaError, ZooKeeperError) as error:
                self.failures[broker_id] = str(error)
        return found


class OfflineBranches(Branches):
    """Branches in the directory of a stopped broker."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
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
        return [one | broker for one in reports if qualifier in (None, one["key"].rpartition(":")[2])]

    def findings(self) -> list[Report]:
        with read_state(self._directory) as (state, segments):
            broker = {"broker": segments.identity.broker_id}
            return [finding_report(finding) | broker for finding in state.ledger]

    def show_all(self, places: Sequence[PlacedKey]) -> Answered[Report]:
        known = {(one["key"], one["broker"]): one for one in (*self.findings(), *self.listed(None))}
        for key, broker_id in places:
            report = known.get((str(key), broker_id))
            missing = NoBranch(f"{self._directory} holds no branch {key} in doubt: see metaq txn list --dir")
            yield (key, broker_id), missing if report is None else report

    def statuses(self, places: Sequence[PlacedKey]) -> Answered[BranchStatus]:
        with read_state(self._directory) as (state, segments):
            for key, broker_id in places:
                ended = state.outcomes.find(str(key)) if broker_id == segments.identity.broker_id else None
                yield (key, broker_id), BranchStatus.UNKNOWN if ended is None else BranchStatus(ended.outcome)

    def end_all(self, places: Sequence[PlacedKey], decision: HeuristicDecision, who: str, why: str) -> Answered[Report]:
        ends = self._each(
            places,
            lambda store, key: store.end_heuristically(store.find(key), decision, who, why).lsn,
            f"branch-{decision.name.lower()}",
            who=who,
            why=why,
        )
        failures = {place: failure for place, failure in ends if failure is not None}
        for place, report in self.show_all(places):
            yield place, failures.get(place, report)

    def forget_all(self, places: Sequence[PlacedKey]) -> Answered[None]:
        return self._each(places, lambda store, key: store.forget(key), "branch-forget")

    def _each(
        self,
        places: Sequence[PlacedKey],
        act: Callable[[JournalTransactionStore, XaKey], int],
        what: str,
        **facts: str,
    ) -> Answered[None]:
        """Act on branches in one opening of the directory; durable once it has yielded the first."""
        ends: list[tuple[PlacedKey, BranchError | None]] = []
        with opened_store(self._directory, version("metaq-broker")) as store:
            lsn = None
            for key, broker_id in places:
                try:
                    lsn = act(store, key)
                    ends.append(((key, broker_id), None))
                except (VerbRefused, ValueError) as error:  # not in doubt, or a who or why that does not fit a record
                    ends.append(((key, broker_id), NoBranch(str(error))))
            if lsn is not None:
                store.journal.wait_flushed(lsn)
        for (key, _), failure in ends:
            if failure is None:
                audit_offline(self._directory, what, key=key, **facts)
        yield from ends


def is_gone(error: BranchError) -> bool:
    """Return whether *error* says that there is no such branch."""
    return isinstance(error, NoBranch) or (isinstance(error, XaError) and error.code == XaCode.XAER_NOTA)


def _only(answers: Answered[T]) -> T:
    ((_, answer),) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _prepared(state: JournalState) -> Iterator[Branch]:
    return (branch for branch in state.branches.values() if branch.state is BranchState.PREPARED)


def _forget(branch: RemoteBranch) -> TransactionCommand:
    # Its qualifier stands in the key: beside it, one of control characters or digits has no form on the wire.
    return TransactionCommand(branch.key, NAME, TransactionVerb.FORGET, None, None, next_opaque())


def _report_of(message: bytes, broker_id: int) -> Report:
    return parse_report(message, f"broker {broker_id}") | {"broker": broker_id}
