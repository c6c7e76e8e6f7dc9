"""Waiting fetches against a dumb list, under random operations."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journal.records.record import PartitionName
from journal.records.xid import BranchKey, LocalKey
from journal.state.live_branch import LiveBranch
from meta_broker.access.accounts import QuotaAccount
from meta_broker.access.principal import Principal
from meta_broker.access.scram import Login
from meta_broker.handlers.context import Attach, WaitingFetch
from meta_broker.handlers.waiting import ENDS_MIN, TICK_MS, WaitingFetches
from meta_client.protocol.requests import Fetch
from tests.fixtures.thoroughness import examples

FETCHES_MAX, PER_PEER_MAX = 12, 5
NAMES = [PartitionName("orders", number) for number in range(3)]


@dataclass(eq=False)
class SilentPeer:
    """A peer that nobody talks to."""

    name: str = "a test"
    address: str = "127.0.0.1"
    certificate: tuple[str, ...] = ()
    has_logged_in: bool = False
    former: tuple[Principal, ...] = ()
    network: str = "127.0.0.1"
    account: QuotaAccount | None = None
    principal: Principal | None = None
    login: Login | None = None
    local_transactions: dict[LocalKey, LiveBranch] = field(default_factory=dict)

    def become(self, principal: Principal) -> str:
        raise AssertionError(principal)

    def send(self, data: bytes) -> None:
        raise AssertionError(data)

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        raise AssertionError(buffers, size)

    def buffer_reply(self, key: BranchKey, data: bytes) -> None:
        raise AssertionError(key, data)

    def pop_buffered(self, key: BranchKey) -> bytes:
        raise AssertionError(key)

    def add_pending(self, size: int) -> None:
        raise AssertionError(size)

    def end_pending(self, size: int) -> None:
        raise AssertionError(size)

    def end_in_flight(self) -> None:
        raise AssertionError

    def enqueue(self, waiting: WaitingFetch) -> None:
        raise AssertionError(waiting)

    def upgrade(self, answer: bytes, attach: Attach) -> bool:
        raise AssertionError(answer, attach)

    def pause(self) -> None:
        raise AssertionError

    def resume(self) -> None:
        raise AssertionError

    def quit(self) -> None:
        raise AssertionError


PEERS = [SilentPeer() for _ in range(3)]
peers, names, groups = st.sampled_from(PEERS), st.sampled_from(NAMES), st.sampled_from(["g", "h"])
epochs = st.none() | st.integers(0, 3)


class WaitingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.waiting = WaitingFetches(FETCHES_MAX, PER_PEER_MAX)
        self.model: list[WaitingFetch] = []
        self.now_ms = 1_000

    @rule(peer=peers, name=names, end=st.integers(0, 20), wait_ms=st.integers(1, 100), group=groups, epoch=epochs)
    def add(self, peer: SilentPeer, name: PartitionName, end: int, wait_ms: int, group: str, epoch: int | None) -> None:
        mine = sum(one.peer is peer for one in self.model)
        if len(self.model) >= FETCHES_MAX:
            assert "fetches_waiting_max is 12" in str(self.waiting.why_full(peer))
        elif mine >= PER_PEER_MAX:
            assert "fetches_waiting_per_connection_max is 5" in str(self.waiting.why_full(peer))
        else:
            fetch = Fetch(name.topic, group, name.partition, 0, 100, end, wait_ms, 1, epoch)
            one = WaitingFetch(fetch, peer, name, end, self.now_ms + wait_ms)
            self.waiting.add(one)
            self.model.append(one)

    @rule(name=names, end=st.integers(0, 20))
    def reach(self, name: PartitionName, end: int) -> None:
        expected = [one for one in self.model if one.name == name and one.end_wanted <= end]
        assert self.waiting.pop_reached(name, end) == expected
        self._gone(expected)

    @rule(name=names, group=groups, epoch=st.integers(0, 4))
    def own(self, name: PartitionName, group: str, epoch: int) -> None:
        expected = [
            one
            for one in self.model
            if one.name == name and one.fetch.group == group and one.fetch.epoch is not None and one.fetch.epoch < epoch
        ]
        assert self.waiting.pop_stale(name, group, epoch) == expected
        self._gone(expected)

    @rule(pass_ms=st.integers(0, 60))
    def time_passes(self, pass_ms: int) -> None:
        self.now_ms += pass_ms
        due = self.waiting.pop_due(self.now_ms)
        assert {one for one in self.model if one.due_ms + TICK_MS <= self.now_ms} <= set(due)
        assert all(one.due_ms <= self.now_ms for one in due)
        assert len(set(due)) == len(due)
        self._gone(due)

    @rule(peer=peers)
    def leave(self, peer: SilentPeer) -> None:
        expected = [one for one in self.model if one.peer is peer]
        assert self.waiting.pop_of_peer(peer) == expected
        self._gone(expected)

    @precondition(lambda self: not self.model)
    @rule()
    def nothing_is_left_behind(self) -> None:
        self.waiting.pop_due(self.now_ms + 10_000)
        assert self.waiting.next_due_ms is None
        assert not self.waiting.by_partition

    @invariant()
    def counts_and_clock_are_right(self) -> None:
        assert len(self.waiting) == len(self.model)
        assert set(self.waiting.by_partition) == {one.name for one in self.model}
        if self.model:
            next_due_ms = self.waiting.next_due_ms
            assert next_due_ms is not None
            assert next_due_ms < min(one.due_ms for one in self.model) + TICK_MS

    def _gone(self, gone: list[WaitingFetch]) -> None:
        assert all(one in self.model for one in gone)
        self.model = [one for one in self.model if one not in gone]


TestWaiting = pytest.mark.filterwarnings("error")(WaitingMachine.TestCase)
TestWaiting.settings = settings(deadline=None, max_examples=examples(200), stateful_step_count=40)


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)


def test_who_waits_for_more_costs_those_nothing_who_are_served() -> None:
    """One hostile peer has thousands wait for bytes that never come, where others read all the time."""
    waiting, name, peer = WaitingFetches(10_000, 10_000), NAMES[0], PEERS[0]
    fetch = Fetch(name.topic, "g", name.partition, 0, 100, 1, 30_000, 1)
    for number in range(2_000):
        waiting.add(WaitingFetch(fetch, peer, name, Counted(1_000_000 + number), 30_000))
    Counted.compared = 0
    for end in range(100):
        waiting.add(WaitingFetch(fetch, peer, name, Counted(end), 30_000))
        assert len(waiting.pop_reached(name, end)) == 1
    assert Counted.compared < 100 * 50
    assert len(waiting.pop_of_peer(peer)) == 2_000
    assert not waiting.by_partition


def test_ends_without_waiters_are_not_kept() -> None:
    waiting, name = WaitingFetches(10, 10), NAMES[0]
    fetch = Fetch(name.topic, "g", name.partition, 0, 100, 1, 30_000, 1)
    waiting.add(WaitingFetch(fetch, PEERS[1], name, 1_000_000, 30_000))
    for end in range(10_000):
        waiting.add(WaitingFetch(fetch, PEERS[0], name, end + 1_000, 30_000))
        waiting.pop_of_peer(PEERS[0])
    assert len(waiting.by_partition[name].ends) <= ENDS_MIN + 3
