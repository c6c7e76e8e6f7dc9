"""Transactions of a broker in memory, by the real one's table of states. One thread at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from journal.records.outcomes import Outcome
from journal.records.states import BranchEvent, BranchNotStarted, BranchState, VerbRefused, XaCode, next_state
from journal.records.xid import BranchKey, LocalKey, XaKey
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.requests import TransactionCommand, TransactionVerb

_EVENTS = {
    TransactionVerb.PREPARE: BranchEvent.PREPARE,
    TransactionVerb.COMMIT_ONE_PHASE: BranchEvent.COMMIT_ONE_PHASE,
    TransactionVerb.COMMIT_TWO_PHASE: BranchEvent.COMMIT_TWO_PHASE,
    TransactionVerb.ROLLBACK: BranchEvent.ROLLBACK,
}

PartitionNumber = tuple[str, int]


@dataclass(slots=True)
class MemoryBranch:
    """A branch and the frames put in it, in order."""

    key: BranchKey
    owner: object  # connection of a local transaction
    expires_at: float | None = None
    state: BranchState = BranchState.START
    puts: list[tuple[PartitionNumber, bytes]] = field(default_factory=list)

    def step(self, event: BranchEvent) -> None:
        """Apply *event*. Raises VerbRefused if the table does not allow it."""
        self.state = next_state(self.key, self.state, event)


class MemoryBranches:
    """Live branches, and the outcomes of XA ones. *publish* is called with what a commit makes visible."""

    def __init__(self, publish: Callable[[PartitionNumber, bytes], None]) -> None:
        self._publish = publish
        self._live: dict[BranchKey, MemoryBranch] = {}
        self._ended: dict[BranchKey, Outcome] = {}

    def find(self, key: BranchKey | None, owner: object) -> MemoryBranch:
        """Return the live branch. Raises VerbRefused if it was not begun, or is over."""
        if key is None:
            raise VerbRefused(XaCode.XAER_INVAL, "null is no transaction")
        branch = self._live.get(key)
        if branch is None or (isinstance(key, LocalKey) and branch.owner is not owner):
            raise BranchNotStarted(key)
        return branch

    def put(self, key: BranchKey, owner: object, place: PartitionNumber, frames: bytes) -> None:
        branch = self.find(key, owner)
        branch.step(BranchEvent.PUT)
        branch.puts.append((place, frames))

    def begin(self, request: TransactionCommand, owner: object, now: float) -> None:
        if request.key is None:
            raise VerbRefused(XaCode.XAER_INVAL, "null is no transaction to begin")
        seconds = request.timeout_seconds
        if request.key not in self._live:
            expires_at = now + seconds if seconds else None
            self._live[request.key] = MemoryBranch(request.key, owner, expires_at)

    def end(self, request: TransactionCommand, owner: object) -> BranchState:
        """Prepare, commit or roll back; return the state after it. Raises VerbRefused."""
        branch = self.find(request.key, owner)
        branch.step(_EVENTS[request.verb])
        if branch.state is BranchState.PREPARED:
            branch.expires_at = None  # prepared branches do not expire
        elif branch.state is BranchState.FINISHED:
            is_committed = request.verb is not TransactionVerb.ROLLBACK
            self._over(branch, Outcome.COMMITTED if is_committed else Outcome.ROLLED_BACK)
            if is_committed:
                for place, frames in branch.puts:
                    self._publish(place, frames)
        return branch.state

    def prepared(self, qualifier: str | None) -> list[XaKey]:
        return [
            key
            for key, branch in self._live.items()
            if isinstance(key, XaKey) and branch.state is BranchState.PREPARED and qualifier in (None, key.qualifier)
        ]

    def status(self, key: BranchKey | None, owner: object) -> BranchStatus:
        if key is not None and (ended := self._ended.get(key)) is not None and key not in self._live:
            return BranchStatus(ended)
        try:
            branch = self.find(key, owner)
        except BranchNotStarted:
            return BranchStatus.UNKNOWN
        return BranchStatus.PREPARED if branch.state is BranchState.PREPARED else BranchStatus.ACTIVE

    def expire(self, now: float) -> None:
        """Roll back branches that timed out."""
        for branch in list(self._live.values()):
            if branch.expires_at is not None and branch.expires_at <= now:
                self._over(branch, Outcome.ROLLED_BACK)

    def gone(self, owner: object) -> None:
        """Discard the local transactions of a closed connection."""
        for branch in list(self._live.values()):
            if isinstance(branch.key, LocalKey) and branch.owner is owner:
                del self._live[branch.key]

    def lose_unprepared(self) -> None:
        """Roll back every branch that is not prepared, as a start after a crash does."""
        for branch in list(self._live.values()):
            if branch.state is not BranchState.PREPARED:
                self._over(branch, Outcome.ROLLED_BACK)

    def _over(self, branch: MemoryBranch, outcome: Outcome) -> None:
        del self._live[branch.key]
        if isinstance(branch.key, XaKey) and branch.puts:
            self._ended[branch.key] = outcome
