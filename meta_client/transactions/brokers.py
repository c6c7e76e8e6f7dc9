"""Branches of one table, as their brokers know them: listed, committed, rolled back, asked for. Any thread."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from journal.xid import Xid
from meta_client.coordinator.broker_codes import ended_as, verdict
from meta_client.coordinator.errors import BranchUnknown, Unreachable
from meta_client.coordinator.finishing import commit_once, commit_until_done
from meta_client.coordinator.participants import Ended
from meta_client.deadline import Deadline
from meta_client.pending_reply import PendingReply
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.requests import TransactionVerb
from meta_client.protocol.xa import XaCode
from meta_client.transactions.names import TableName
from meta_client.xa_verbs import REQUEST_TIMEOUT_S, Listing, XaVerbs
from zk.errors import ZooKeeperError


@dataclass(frozen=True, slots=True)
class Told:
    """A COMMIT that is on its way to one broker."""

    broker_id: int
    reply: PendingReply
    deadline: Deadline


class Brokers:
    """What a table's resolver, and its transactions once they are decided, ask of brokers."""

    def __init__(self, verbs: XaVerbs, name: TableName) -> None:
        """*verbs*: under the qualifier of *name*."""
        assert verbs.qualifier == name.qualifier
        self._verbs = verbs
        self._name = name

    def listed(self) -> Listing:
        """Every branch that is prepared, or was ended by hand, by broker. Raises Unreachable if nobody can be asked."""
        try:
            return self._verbs.list_prepared(self._name.qualifier)
        except (ZooKeeperError, MetaError) as error:
            raise Unreachable("ZooKeeper", str(error)) from error

    def ours(self, listing: Listing) -> Iterator[tuple[str, int]]:
        """Transaction and broker of each branch in *listing* that this table decides about."""
        for broker_id, keys in listing.keys.items():
            for key in keys:
                if (gtrid := self._name.gtrid_of(key.xid, broker_id)) is not None:
                    yield gtrid, broker_id

    def tell(self, gtrid: str, broker_id: int) -> Told:
        """Send COMMIT of a decided transaction; `hear` waits for the answer. Raises Unreachable."""
        deadline, key = Deadline(REQUEST_TIMEOUT_S), self._name.key(gtrid, broker_id)
        try:
            return Told(
                broker_id, self._verbs.post(TransactionVerb.COMMIT_TWO_PHASE, key, broker_id, deadline), deadline
            )
        except XaError as error:
            raise Unreachable(_name(broker_id), str(error)) from error

    def hear(self, gtrid: str, told: Told) -> None:
        """Return once the broker has committed. Raises Unreachable, HeuristicOutcome."""
        branch = _Branch(self._verbs, self._name, gtrid, told.broker_id, told)
        commit_once(branch, _whole(gtrid), "", is_repeated=False)

    def commit_until_done(self, gtrid: str, told: Told | int, rest: Callable[[float], bool]) -> None:
        """As `hear`, or as `commit` at a broker that could not be told, however long it takes. *rest* waits so many
        seconds; True: give up. Raises HeuristicOutcome, CoordinatorClosed when it gives up."""
        broker_id, on_its_way = (told, None) if isinstance(told, int) else (told.broker_id, told)
        branch = _Branch(self._verbs, self._name, gtrid, broker_id, on_its_way)
        commit_until_done(branch, _whole(gtrid), "", rest)

    def commit(self, gtrid: str, broker_id: int) -> bool:
        """Commit a decided branch, prepared or not any more; False: it had been committed before.

        Raises Unreachable, HeuristicOutcome.
        """
        branch = _Branch(self._verbs, self._name, gtrid, broker_id)
        return commit_once(branch, _whole(gtrid), "", is_repeated=True)

    def rollback(self, gtrid: str, broker_id: int) -> Ended:
        """Roll a branch back, prepared or not; how it has ended. COMMITTED: it had been decided and told before.

        Raises Unreachable, HeuristicOutcome.
        """
        branch = _Branch(self._verbs, self._name, gtrid, broker_id)
        try:
            branch.rollback()
        except BranchUnknown:
            return branch.outcome(_whole(gtrid), "")
        return Ended.ROLLED_BACK


class _Branch:
    """One branch at one broker, as the coordinator's rules finish one."""

    def __init__(self, verbs: XaVerbs, name: TableName, gtrid: str, broker_id: int, told: Told | None = None) -> None:
        self.name = _name(broker_id)
        self._verbs = verbs
        self._key = name.key(gtrid, broker_id)
        self._broker_id = broker_id
        self._told = told  # a COMMIT that was sent before

    def commit(self, xid: Xid) -> None:
        del xid
        told, self._told = self._told, None
        verb = TransactionVerb.COMMIT_TWO_PHASE
        try:
            if told is None:
                self._verbs.ask(verb, self._key, self._broker_id)
            else:
                self._verbs.answer(verb, self._key, self._broker_id, told.reply, told.deadline)
        except XaError as error:
            self._agree_or_raise(error, XaCode.XA_HEURCOM, "commit")

    def rollback(self) -> None:
        """Raises BranchUnknown, HeuristicOutcome, Unreachable."""
        try:
            self._verbs.ask(TransactionVerb.ROLLBACK, self._key, self._broker_id)
        except XaError as error:
            self._agree_or_raise(error, XaCode.XA_HEURRB, "roll back")

    def outcome(self, xid: Xid, receipt: str) -> Ended:
        del xid, receipt
        try:
            return ended_as(self._verbs.status(self._key.xid, self._broker_id))
        except XaError as error:
            raise Unreachable(self.name, str(error)) from error

    def _agree_or_raise(self, error: XaError, agrees: XaCode, wanted: str) -> None:
        """Somebody who ended it by hand as was decided is told that it was right; anything else is raised."""
        if error.code != agrees:
            raise verdict(self._key.xid, self.name, wanted, error) from error
        try:
            self._verbs.ask(TransactionVerb.FORGET, self._key, self._broker_id)
        except XaError as forgetting:
            raise Unreachable(self.name, str(forgetting)) from forgetting


def _name(broker_id: int) -> str:
    return f"broker {broker_id}"


def _whole(gtrid: str) -> Xid:
    return Xid(1, gtrid.encode(), b"")
