"""Requests of clients and the answers they got: the facts a crash must preserve.

A crash leaves questions open (asked, not told). Each check answers them, and from then on the answer must stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from journal.records.record import PartitionName
from journal.records.xid import BranchKey
from meta_client.protocol.messages import Message

Log = dict[PartitionName, list[tuple[int, Message]]]  # every message of every partition, with its offset


class Known(Enum):
    """Progress of a client with a step."""

    NOT_ASKED = 0
    ASKED = 1  # sent; the connection died before the answer
    TOLD = 2


class Decision(Enum):
    NONE = "none"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(eq=False)
class BranchFacts:
    """One transaction branch."""

    key: BranchKey
    puts: list[tuple[PartitionName, bytes]] = field(default_factory=list)
    prepared: Known = Known.NOT_ASKED
    decision: Decision = Decision.NONE
    decided: Known = Known.NOT_ASKED

    @property
    def is_over(self) -> bool:
        return self.decided is Known.TOLD

    @property
    def must_be_visible(self) -> bool:
        return self.decision is Decision.COMMIT and self.decided is Known.TOLD

    @property
    def may_be_visible(self) -> bool:
        return self.decision is Decision.COMMIT and self.decided is not Known.NOT_ASKED

    @property
    def must_be_in_doubt(self) -> bool:
        return self.prepared is Known.TOLD and self.decided is Known.NOT_ASKED

    @property
    def may_be_in_doubt(self) -> bool:
        return self.prepared is not Known.NOT_ASKED and self.decided is not Known.TOLD

    def settle(self, *, visible: bool, in_doubt: bool) -> None:
        """Record the outcome of a step that was open."""
        if in_doubt:
            self.prepared, self.decision, self.decided = Known.TOLD, Decision.NONE, Known.NOT_ASKED
        else:
            self.decision, self.decided = Decision.COMMIT if visible else Decision.ROLLBACK, Known.TOLD


@dataclass
class Ledger:
    """All actions of one client, across all restarts of the broker. Owned by one thread at a time."""

    plain: dict[tuple[PartitionName, int], tuple[int, bytes]] = field(default_factory=dict)  # acknowledged puts
    open_puts: set[bytes] = field(default_factory=set)  # plain puts without an answer
    branches: list[BranchFacts] = field(default_factory=list)


def check(ledgers: Iterable[Ledger], log: Log, in_doubt: set[BranchKey]) -> None:
    """Compare what clients know with what the broker holds; settles every open branch."""
    places: dict[bytes, tuple[PartitionName, int]] = {}  # where each payload stands, as the n-th of its partition
    ids: set[int] = set()
    explained: set[bytes] = set()
    for name, messages in log.items():
        for number, (offset, message) in enumerate(messages):
            assert message.payload not in places, f"{name} at {offset}: {message.payload[:20]!r} is there twice"
            assert message.id not in ids, f"{name} at {offset}: id {message.id} is there twice"
            places[message.payload] = name, number
            ids.add(message.id)
    doubted: set[BranchKey] = set()
    for ledger in ledgers:
        check_plain(ledger, log, places)
        explained |= ledger.open_puts | {body for _, body in ledger.plain.values()}
        for branch in ledger.branches:
            explained |= check_branch(branch, places, in_doubt)
            if branch.must_be_in_doubt:
                assert branch.key not in doubted
                doubted.add(branch.key)
    assert in_doubt == doubted, f"in doubt and unknown to every client: {in_doubt - doubted}"
    unexplained = places.keys() - explained
    assert not unexplained, f"visible, though nobody committed it: {sorted(unexplained)[:3]}"


def check_plain(ledger: Ledger, log: Log, places: dict[bytes, tuple[PartitionName, int]]) -> None:
    by_offset = {name: dict(messages) for name, messages in log.items()}
    for (name, offset), (message_id, body) in ledger.plain.items():
        message = by_offset[name].get(offset)
        assert message is not None, f"{name} at {offset}: an acknowledged put is lost"
        assert (message.id, message.payload) == (message_id, body), f"{name} at {offset}: another message"
    for body in [body for body in ledger.open_puts if body in places]:
        name, number = places[body]
        offset, message = log[name][number]
        ledger.plain[name, offset] = message.id, body  # it got in: from now on it must stay
    ledger.open_puts.clear()


def check_branch(
    branch: BranchFacts, places: dict[bytes, tuple[PartitionName, int]], in_doubt: set[BranchKey]
) -> set[bytes]:
    """Returns the payloads that this branch explains."""
    bodies = [body for _, body in branch.puts]
    visible = {body for body in bodies if body in places}
    is_live = not branch.is_over  # a key may have served a branch that is over, and serve another now
    is_in_doubt = is_live and branch.key in in_doubt
    what = f"{branch.key} prepared={branch.prepared} decision={branch.decision} decided={branch.decided}"
    assert not visible or len(visible) == len(bodies), f"{what}: {len(visible)} of {len(bodies)} messages are visible"
    assert not (visible and is_in_doubt), f"{what}: visible and in doubt"
    assert not visible or branch.may_be_visible, f"{what}: visible"
    assert visible or not bodies or not branch.must_be_visible, f"{what}: committed, and lost"
    assert not is_in_doubt or branch.may_be_in_doubt, f"{what}: in doubt"
    assert is_in_doubt or not branch.must_be_in_doubt, f"{what}: prepared, and lost"
    if branch.prepared is Known.TOLD and branch.decision is Decision.COMMIT:
        assert visible or is_in_doubt or not bodies, f"{what}: neither committed nor in doubt"
    if visible:
        check_contiguous(branch, places)
    if is_live:
        branch.settle(visible=bool(visible), in_doubt=is_in_doubt)
    return visible


def check_contiguous(branch: BranchFacts, places: dict[bytes, tuple[PartitionName, int]]) -> None:
    """A commit's messages of a partition follow one another in put order (spec 2.8)."""
    numbers: dict[PartitionName, list[int]] = {}
    for name, body in branch.puts:
        found, number = places[body]
        assert found == name, f"{branch.key}: put to {name}, found in {found}"
        numbers.setdefault(name, []).append(number)
    for name, found_numbers in numbers.items():
        first = found_numbers[0]
        assert found_numbers == list(range(first, first + len(found_numbers))), f"{branch.key} in {name}: scattered"
