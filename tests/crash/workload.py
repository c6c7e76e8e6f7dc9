"""Clients that put, prepare, commit and roll back at random until their broker dies, and write down what they know."""

import itertools
from collections.abc import Callable
from random import Random

from journal.records.record import PartitionName
from journal.records.xid import BranchKey, LocalKey, XaKey, Xid
from meta_client.protocol.answers import parse_keys, parse_put_place
from meta_client.protocol.messages import HEADER_BYTES, Message
from meta_client.protocol.requests import PARTITION_ANY, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result, Value
from tests.crash.ledger import BranchFacts, Decision, Known, Ledger, Log
from tests.fixtures.wire import WireClient

PARTITIONS = [PartitionName("orders", number) for number in range(4)] + [
    PartitionName("invoices", number) for number in range(2)
]
# Small segments, and checkpoints all the time: every boundary is crossed between two kills.
CONFIG = """
[broker]
segment_bytes = 262144
message_bytes_max = 65536
transfer_bytes_max = 131072
checkpoint_bytes = 65536
checkpoint_seconds = 0.5

[topics.orders]
partitions = 4

[topics.invoices]
partitions = 2
"""

NO_CHECKPOINTS = CONFIG.replace("checkpoint_bytes = 65536", "checkpoint_bytes = 1073741824").replace(
    "checkpoint_seconds = 0.5", "checkpoint_seconds = 1000"
)

BODY_BYTES_MAX = 3_000
BURST_MAX = 30
QUALIFIER = "crash"
V = TransactionVerb
Connect = Callable[[], WireClient]  # a new connection to the broker at hand; raises ConnectionError


class Producer:
    """One client through all lives of a broker. `run` is one life; a thread's job."""

    def __init__(self, number: int, seed: int) -> None:
        self.ledger = Ledger()
        self._number = number
        self._random = Random(f"{seed}-{number}")
        self._bodies = itertools.count()
        self._local_keys = itertools.count()

    def run(self, connect: Connect) -> None:
        """Work until the broker dies. Everything but its death raises."""
        try:
            with connect() as client:
                while True:
                    step = self._random.choice(
                        [self._plain, self._plain, self._local, self._xa, self._xa, self._finish]
                    )
                    step(client)
        except ConnectionError:
            return

    def _body(self) -> bytes:
        head = b"%d.%d." % (self._number, next(self._bodies))
        return head + bytes(self._random.randrange(BODY_BYTES_MAX))

    def _plain(self, client: WireClient) -> None:
        """A burst of pipelined puts."""
        bodies = [self._body() for _ in range(self._random.randrange(1, BURST_MAX))]
        topic, partition = self._random.choice(PARTITIONS)
        if self._random.random() < 0.2:
            partition = PARTITION_ANY
        self.ledger.open_puts |= set(bodies)
        client.send(*(Put(topic, partition, 0, None, None, number, body) for number, body in enumerate(bodies)))
        for _ in bodies:
            answer = client.receive()
            assert isinstance(answer, Result)
            if not answer.is_success:
                self._refused(answer)
                continue
            message_id, partition, offset = parse_put_place(answer.message)
            assert offset is not None
            body = bodies[answer.opaque]
            self.ledger.plain[PartitionName(topic, partition), offset] = message_id, body
            self.ledger.open_puts.remove(body)

    def _refused(self, answer: Result) -> None:
        """A put that was not acknowledged, by a broker that lives."""
        raise AssertionError(answer)

    def _local(self, client: WireClient) -> None:
        branch = self._begin(client, LocalKey(f"s{self._number}", next(self._local_keys)))
        self._put_some(client, branch)
        self._decide(client, branch, V.COMMIT_ONE_PHASE)

    def _xa(self, client: WireClient) -> None:
        live = {branch.key for branch in self.ledger.branches if not branch.is_over}
        # Few names, so that most have served before; but only one branch may be alive under each.
        free = [key for n in range(8) if (key := XaKey(Xid.of(f"{self._number}-{n}", "b"), QUALIFIER)) not in live]
        if not free:
            return
        branch = self._begin(client, self._random.choice(free))
        self._put_some(client, branch)
        if self._random.random() < 0.1:
            self._decide(client, branch, V.COMMIT_ONE_PHASE)
            return
        client.send(TransactionCommand(branch.key, "s", V.END, None, None, client.opaque()))
        branch.prepared = Known.ASKED
        vote = client.verb(V.PREPARE, branch.key)
        if vote == b"3":
            assert not branch.puts
            branch.prepared, branch.decision, branch.decided = Known.NOT_ASKED, Decision.ROLLBACK, Known.TOLD
            return
        assert vote == b"0"
        branch.prepared = Known.TOLD
        if self._random.random() < 0.7:
            self._decide(client, branch, V.COMMIT_TWO_PHASE)

    def _finish(self, client: WireClient) -> None:
        """Decide for a branch that was left in doubt, maybe in an earlier life."""
        if waiting := [branch for branch in self.ledger.branches if branch.must_be_in_doubt]:
            self._decide(client, self._random.choice(waiting), V.COMMIT_TWO_PHASE)

    def _begin(self, client: WireClient, key: BranchKey) -> BranchFacts:
        branch = BranchFacts(key)
        self.ledger.branches.append(branch)
        timeout = self._random.choice([None, 60])
        client.verb(V.BEGIN, key, timeout_seconds=timeout)
        return branch

    def _put_some(self, client: WireClient, branch: BranchFacts) -> None:
        for _ in range(self._random.choice([0, 1, 1, 2, 3, 8])):
            name, body = self._random.choice(PARTITIONS), self._body()
            branch.puts.append((name, body))
            client.put(*name, body, branch.key)

    def _decide(self, client: WireClient, branch: BranchFacts, commit: TransactionVerb) -> None:
        decision = Decision.COMMIT if self._random.random() < 0.75 else Decision.ROLLBACK
        branch.decision, branch.decided = decision, Known.ASKED
        client.verb(commit if decision is Decision.COMMIT else V.ROLLBACK, branch.key)
        branch.decided = Known.TOLD


class Reader:
    """Reads every partition while others write: every message seen was acknowledged and must stay."""

    def __init__(self) -> None:
        self.seen: Log = {}

    def run(self, connect: Connect, ends: dict[PartitionName, int]) -> None:
        """Follow the partitions from *ends* on until the broker dies."""
        self.seen = {name: [] for name in PARTITIONS}
        offsets = dict(ends)
        try:
            with connect() as client:
                for name in itertools.cycle(PARTITIONS):
                    if isinstance(client.get(*name, offsets[name], 1), Value):
                        found = client.read_all(*name, offsets[name])
                        self.seen[name] += found
                        offsets[name] = end_of(found)
        except ConnectionError:
            return


def end_of(messages: list[tuple[int, Message]]) -> int:
    """The offset after the last one; these messages carry no attribute."""
    if not messages:
        return 0
    offset, last = messages[-1]
    return offset + HEADER_BYTES + len(last.payload)


def read_back(connect: Connect) -> tuple[Log, set[BranchKey]]:
    """Read everything the broker shows: messages, at offsets without gap or overlap, and branches in doubt."""
    with connect() as client:
        log = {name: client.read_all(*name) for name in PARTITIONS}
        keys = parse_keys(client.verb(TransactionVerb.RECOVER, None, qualifier=QUALIFIER))
    assert len(set(keys)) == len(keys)
    return log, set(keys)
