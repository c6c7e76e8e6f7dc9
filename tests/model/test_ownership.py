"""Owners that are stopped, cut off and late, against a ZooKeeper too simple to be wrong: claims, epochs, leases and
offsets, with the very functions that decide about them in consumers and brokers.

What a process sends takes as long as it likes, and arrives in its order; answers are read when the process runs. A
stopped process does nothing, and knows nothing of it on waking. Sessions end by the server's clock alone.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journal.records.record import PartitionName
from meta_broker.handlers.owners import Owned, OwnerEpochs
from tests.fixtures.model_tree import ModelTree, SessionOver
from tests.fixtures.thoroughness import examples
from zk.session import lease as lease_module
from zk.session.lease import Lease
from zk.tree.claims import Claimed, OwnedBy, OwnerPaths, decode_epoch, ownership_check, plan_claim, plan_release
from zk.tree.nodes import Node, OffsetNode, decode_offset_node
from zk.tree.transactions import NodeTransaction, Write

TIMEOUT_S = 10.0
PLACE, OFFSET = OwnerPaths("/owner", "/epoch"), "/offset"
OWNED = Owned("g", PartitionName("t", 0))
JAVA = "g_java"


class Arrives(Protocol):
    """Looks at a transaction that got to the server: who was the owner just before, and whether it was refused."""

    def __call__(self, owner: str | None, *, refused: bool) -> None: ...


@dataclass(eq=False)
class Process:
    """One of our consumers: what it believes, and what is on its way to the server and back."""

    name: str
    session: int
    lease: Lease = field(default_factory=Lease)
    claimed: Claimed | None = None
    offset: int = 0  # where it goes on
    is_stopped: bool = False
    is_paused: bool = False  # it has a new session, and its group's thread has not come to that yet
    sent: deque[Callable[[], None]] = field(default_factory=deque)  # to the server, in order
    answers: deque[Callable[[], None]] = field(default_factory=deque)  # from it, to be read

    @property
    def consumer_id(self) -> str:
        return f"g_{self.name}"


class Owners(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.tree = ModelTree(TIMEOUT_S)
        self.tree.nodes = {PLACE.epoch: Node(b"0", 0, 0), OFFSET: Node(OffsetNode(0).encode(), 0, 0)}
        self.broker = OwnerEpochs(100)
        self.epoch_fetched = 0  # the highest one that the broker was asked with
        self.epoch_delivered = 0  # the highest one with which something was delivered
        self.processes: list[Process] = []
        self.java_session: int | None = None
        self._clock = mock.patch.object(lease_module, "now", self.read_clock)
        self._clock.start()

    def read_clock(self) -> float:
        return self.now

    def teardown(self) -> None:
        self._clock.stop()

    @initialize(count=st.integers(2, 3))
    def start(self, count: int) -> None:
        self.processes = [Process(name, self.tree.connect(self.now)) for name in "abc"[:count]]
        for process in self.processes:
            process.lease.granted(self.now, TIMEOUT_S)
        self.claim(0, quick=True)

    # -- what a process does while it runs -----------------------------------------------------------------------

    @rule(who=st.integers(0, 2))
    def ask(self, who: int) -> None:
        """Answer a process's ping, which keeps its session and its lease."""
        process, asked_at = self.process(who), self.now
        if process is not None:
            self.send(process, lambda: None, lambda: process.lease.renew(asked_at))

    @rule(who=st.integers(0, 2), quick=st.booleans())
    def claim(self, who: int, *, quick: bool) -> None:
        process = self.process(who)
        if process is None or process.is_paused or process.claimed is not None:
            return
        nodes = self.tree.nodes  # what was read; all sorts of things may happen before the transaction arrives
        plan = plan_claim(
            PLACE, process.consumer_id, process.session, nodes.get(PLACE.owner), nodes.get(PLACE.epoch), 0
        )
        if isinstance(plan, OwnedBy):
            return
        transaction, claimed = plan

        def owns() -> None:
            if not process.is_paused:
                process.claimed = claimed
                process.offset = self.stored()  # read once it is ours

        self.transact(process, transaction, owns)
        if quick:
            self.at_once(who)

    @rule(who=st.integers(0, 2))
    def release(self, who: int) -> None:
        process = self.process(who)
        if process is not None and (claimed := process.claimed) is not None:
            process.claimed = None  # nothing of it is delivered any more

            def arrives(owner: str | None, *, refused: bool) -> None:
                assert refused or owner == process.consumer_id  # nobody else's node is deleted

            self.transact(process, plan_release(PLACE, claimed), lambda: None, arrives)

    @rule(who=st.integers(0, 2))
    def commit(self, who: int) -> None:
        process = self.process(who)
        if process is None or (claimed := process.claimed) is None:
            return
        write = Write(OFFSET, OffsetNode(process.offset).encode())

        def arrives(owner: str | None, *, refused: bool) -> None:
            if refused:
                assert owner != process.consumer_id or self.epoch() != claimed.epoch  # stale indeed
                process.claimed = None if process.claimed == claimed else process.claimed
            else:
                assert owner == process.consumer_id
                assert self.epoch() == claimed.epoch

        self.transact(process, (*ownership_check(PLACE, claimed), write), lambda: None, arrives)

    @rule(who=st.integers(0, 2))
    def start_over(self, who: int) -> None:
        """Deliver the lost session to the group's thread."""
        if (process := self.process(who)) is not None and process.is_paused:
            process.claimed = None
            process.is_paused = False

    @rule(who=st.integers(0, 2), size=st.integers(1, 9))
    def deliver(self, who: int, size: int) -> None:
        """A batch that was fetched before is handed over, if it may be: here and now, with the owner's own clock."""
        process = self.process(who)
        if process is None or process.claimed is None or process.is_paused or not process.lease.is_valid():
            return
        self.tree.expire(self.now)
        assert self.owner() == process.consumer_id  # to any observer it owns the partition at this moment
        assert self.epoch() == process.claimed.epoch
        assert process.claimed.epoch >= self.epoch_delivered
        self.epoch_delivered = process.claimed.epoch
        process.offset += size

    @rule(who=st.integers(0, 2))
    def fetch(self, who: int) -> None:
        process = self.process(who)
        if process is None or (claimed := process.claimed) is None:
            return
        highest = self.broker.seen(OWNED, claimed.epoch)
        assert (highest == claimed.epoch) == (claimed.epoch >= self.epoch_fetched)
        self.epoch_fetched = max(self.epoch_fetched, claimed.epoch)
        if highest != claimed.epoch:
            process.claimed = None  # refused: it gives the partition up

    # -- the world -------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 2), count=st.integers(1, 5))
    def arrive(self, who: int, count: int) -> None:
        """Some of what was sent gets to the server; of a process that is stopped, too."""
        process = self.processes[who % len(self.processes)]
        for _ in range(min(count, len(process.sent))):
            process.sent.popleft()()

    @rule(who=st.integers(0, 2))
    def read(self, who: int) -> None:
        """All answers that are there are read."""
        if (process := self.process(who)) is not None:
            while process.answers:
                process.answers.popleft()()

    @rule(who=st.integers(0, 2))
    def at_once(self, who: int) -> None:
        """All is quick for once."""
        if (process := self.process(who)) is not None:
            while process.sent:
                process.sent.popleft()()
            self.read(who)

    @rule(who=st.integers(0, 2))
    def stop_or_wake(self, who: int) -> None:
        process = self.processes[who % len(self.processes)]
        process.is_stopped = not process.is_stopped

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, 7.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        who=st.integers(0, 2),
        other=st.integers(0, 2),
        is_java=st.booleans(),
        then=st.sampled_from(["commit", "release"]),
    )
    def sleep_through_the_end(self, who: int, other: int, then: str, *, is_java: bool) -> None:
        """Stopped until the session is over, and another owns the partition; on waking, kazoo is faster than we are:
        what was about to be sent goes out in the new session."""
        process, heir = self.process(who), self.process(other)
        if process is None or heir is None or process is heir:
            return
        for _ in range(3):
            self.now += 4.0
            self.ask(other)
            self.at_once(other)
            self.start_over(other)
        if is_java:
            self.java_claims()
        else:
            self.claim(other, quick=True)
        self.ask(who)
        self.at_once(who)
        (self.commit if then == "commit" else self.release)(who)
        self.at_once(who)

    @rule(who=st.integers(0, 2), seconds=st.sampled_from([1.0, 7.0]), later=st.sampled_from([0.0, 4.0]))
    def read_late(self, who: int, seconds: float, later: float) -> None:
        """The answer is there, and read much later."""
        self.now += 0.5
        self.ask(who)
        self.arrive(who, 9)
        self.now += seconds
        self.read(who)
        self.now += later
        self.deliver(who, 1)

    @rule()
    def java_claims(self) -> None:
        """A genuine member makes the node if there is none, and knows of no epochs."""
        self.tree.expire(self.now)
        if PLACE.owner not in self.tree.nodes:
            self.java_session = self.tree.connect(self.now)
            self.tree.nodes[PLACE.owner] = Node(JAVA.encode(), self.java_session, 0)

    @precondition(lambda self: self.java_session is not None)
    @rule(commits=st.booleans())
    def java_leaves(self, *, commits: bool) -> None:
        assert self.java_session is not None
        if commits and self.owner() == JAVA:
            self.tree.nodes[OFFSET] = Node(OffsetNode(self.stored() + 1).encode(), 0, 99)
        self.tree.end(self.java_session)
        self.java_session = None

    @invariant()
    def there_are_offsets_and_epochs(self) -> None:
        assert self.stored() >= 0
        assert self.epoch() >= self.epoch_delivered

    # -- how things are sent ---------------------------------------------------------------------------------------

    def process(self, who: int) -> Process | None:
        process = self.processes[who % len(self.processes)]
        return None if process.is_stopped else process

    def transact(
        self,
        process: Process,
        transaction: NodeTransaction,
        done: Callable[[], None],
        arrives: Arrives = lambda owner, refused: None,
    ) -> None:
        session = process.session

        def at_the_server() -> bool:
            owner, offset = self.owner(), self.stored()
            refused = self.tree.transact(session, self.now, transaction) is not None
            assert not refused or self.stored() == offset
            arrives(owner, refused=refused)
            return not refused

        self.send(process, at_the_server, done)

    def send(self, process: Process, request: Callable[[], bool | None], done: Callable[[], None]) -> None:
        """*done* is called with a good answer, once the process reads it; the end of its session comes the same way."""
        session = process.session

        def arrive() -> None:
            try:
                self.tree.touch(session, self.now)
                answer = done if request() is not False else lambda: None
            except SessionOver:
                answer = self.session_over(process, session)
            process.answers.append(answer)

        process.sent.append(arrive)

    def session_over(self, process: Process, session: int) -> Callable[[], None]:
        def lost() -> None:
            if process.session == session:  # told once; delivery is paused at that moment
                process.is_paused = True
                process.sent.clear()
                process.answers.clear()
                process.session = self.tree.connect(self.now)
                process.lease.granted(self.now, TIMEOUT_S)

        return lost

    def owner(self) -> str | None:
        node = self.tree.nodes.get(PLACE.owner)
        return None if node is None else node.data.decode()

    def epoch(self) -> int:
        return decode_epoch(PLACE.epoch, self.tree.nodes[PLACE.epoch].data)

    def stored(self) -> int:
        return decode_offset_node(OFFSET, self.tree.nodes[OFFSET].data).offset


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=examples(250), stateful_step_count=30, deadline=None)
