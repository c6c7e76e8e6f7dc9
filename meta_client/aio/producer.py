"""Sending messages from tasks: plain, in local transactions, or in XA branches. The twin of meta_client/producer.py.

What a producer may do, and in which order, is that file's; it runs in tasks here (bridge.py).
"""

from collections.abc import Collection, Generator
from types import TracebackType
from typing import Any, Self

from journal.xid import LocalKey, Xid
from meta_client.aio.bridge import run, wait
from meta_client.aio.connections import Connections
from meta_client.aio.sender import Sender, SendHandle
from meta_client.aio.topology import Topology
from meta_client.allowed_codecs import AllowedCodecs
from meta_client.branch_puts import BranchHandle as ThreadedBranchHandle
from meta_client.local_transaction import LocalTransaction as Rules
from meta_client.placing import Partitioner
from meta_client.producer import SEND_TIMEOUT_S
from meta_client.producer import Producer as ProducerRules
from meta_client.protocol.answers import BranchStatus
from meta_client.puts import Compression, encode_message, parse_partition
from meta_client.results import SendResult
from meta_client.single_sends import SingleSends
from meta_client.xa import Branch
from meta_client.xa_verbs import Listing
from zk.forks import in_its_own_process, made_here
from zk.nodes import Partition


class _Handle:
    """A message on its way, for rules that wait."""

    __slots__ = ("handle",)

    def __init__(self, handle: SendHandle) -> None:
        self.handle = handle

    @property
    def is_done(self) -> bool:
        return self.handle.is_done

    def result(self, timeout_s: float | None = None) -> SendResult:
        return wait(self.handle.result(timeout_s))


class _Gatherer:
    """The sender, for rules that wait."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> _Handle:
        return _Handle(wait(self._sender.add(topic, wanted, flag, body)))

    def flush(self, timeout_s: float | None = None) -> None:
        wait(self._sender.flush(timeout_s))

    def is_behind(self, topic: str, partition: Partition) -> bool:
        return self._sender.is_behind(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        self._sender.push(topic, partition)


class BranchHandle:
    """A message on its way into a branch. May be dropped at will: the branch's PREPARE looks at it all the same."""

    __slots__ = ("_handle",)

    def __init__(self, handle: ThreadedBranchHandle) -> None:
        self._handle = handle

    @property
    def is_done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._handle.is_done

    async def result(self, timeout_s: float | None = None) -> SendResult:
        """Where the message went, which sends it if it waits for company. The task alone that works on the branch.
        Raises SendFailed, and then the branch can only be rolled back; XaError."""
        return await run(self._handle.result, timeout_s)

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self.result().__await__()


class LocalTransaction:
    """One transaction of a producer; Producer.transaction() makes it. Use as an asynchronous context manager: leaving
    the block commits, an exception rolls back. The task alone that works on it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        made_here(self)

    @property
    def key(self) -> LocalKey:
        """What the broker knows it by."""
        return self._rules.key

    async def commit(self) -> None:
        """Make the messages visible; durable at the broker on return. Without any message nothing happens.

        Raises TransactionFailed (nothing is visible, nor will be), TransactionUnknown, TransactionMisuse.
        """
        await run(self._rules.commit)

    async def rollback(self) -> None:
        """Drop the messages. Never fails: a broker that can't be told drops them when the connection ends."""
        await run(self._rules.rollback)

    async def __aenter__(self) -> Self:
        self._rules.__enter__()
        return self

    @in_its_own_process
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run(self._rules.__exit__, kind, error, trace)


class Producer:
    """Sends messages. Cheap: it owns no task and no socket. Client.producer() makes it.

    Outside transactions any task may send; a transaction belongs to the task that began it, or joined it last, and so
    does the producer then: others get TransactionMisuse. *qualifier* names the producers whose prepared branches belong
    together (tpc_recover).
    """

    def __init__(
        self,
        topology: Topology,
        connections: Connections,
        qualifier: str,
        sender: Sender,
        compression: Compression | None,
        allowed: AllowedCodecs,
        sends: SingleSends,
        partitioner: Partitioner | None,
    ) -> None:
        self.qualifier = qualifier
        self._sender = sender
        self._is_plain = compression is None and partitioner is None
        made_here(self)
        gatherer = _Gatherer(sender)
        self.rules = ProducerRules(topology, connections, qualifier, gatherer, compression, allowed, sends, partitioner)

    async def send(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> SendResult:
        """Send one message and wait until the broker has acknowledged it; where it went.

        Within a transaction it becomes part of it. Raises SendFailed: the subclass tells whether the message may be
        stored; LocalProtocolError and zk's InvalidName for what can't be sent at all. A task that is cancelled while
        it waits does not know whether the message is stored.
        """
        return await run(self.rules.send, topic, payload, attribute, partition, timeout_s)

    async def send_async(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
    ) -> SendHandle | BranchHandle:
        """Send one message with others, without waiting for the broker; `await` the handle to hear where it went.

        meta_client.Producer.send_async says how messages are gathered, and what is raised. Waits while too much is
        unacknowledged, and lets other tasks run once a batch.
        """
        if self._is_plain and not self.rules.is_in_transaction:
            wanted = None if partition is None else parse_partition(partition)
            flag, body = encode_message(topic, payload, attribute)
            return self._sender.add_now(topic, wanted, flag, body) or await self._sender.add(topic, wanted, flag, body)
        handle = await run(self.rules.send_async, topic, payload, attribute, partition)
        if isinstance(handle, _Handle):
            return handle.handle
        assert isinstance(handle, ThreadedBranchHandle)
        return BranchHandle(handle)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what send_async has gathered, for all producers of the client, and return once it is settled.

        Raises the first SendFailed of any message since the last flush; ReplyTimeout after *timeout_s*.
        """
        await self._sender.flush(timeout_s)

    async def partitions(self, topic: str, timeout_s: float = SEND_TIMEOUT_S) -> tuple[Partition, ...]:
        """The partitions that `send` chooses from at this moment, never none. Raises NoPartition, NoBroker, and zk's
        InvalidName for what can be no topic."""
        return await run(self.rules.partitions, topic, timeout_s)

    def transaction(self, timeout_s: float = 0) -> LocalTransaction:
        """Begin a local transaction: what this producer sends from now on belongs to it, on one broker.

        Use with `async with`. The broker rolls it back when the connection breaks, and after *timeout_s* (0: never).
        Raises TransactionMisuse while another transaction or branch is open.
        """
        return LocalTransaction(self.rules.transaction(timeout_s))

    async def tpc_begin(self, xid: Xid, topics: Collection[str] = (), timeout_s: float = 0) -> None:
        """Begin XA branch *xid* on a broker that has all of *topics*; meta_client.Producer.tpc_begin says the rest."""
        await run(self.rules.tpc_begin, xid, topics, timeout_s)

    def join(self) -> None:
        """Work on the open transaction or branch from now on, in the calling task, in place of the one that did.

        Any other task that sends meanwhile gets TransactionMisuse: its message would be part of it.
        """
        self.rules.join()

    async def tpc_prepare(self) -> bool:
        """First phase: the branch can still commit or roll back after any crash. False: it was read-only and is
        over. Raises XaError; then roll it back."""
        return await run(self.rules.tpc_prepare)

    async def tpc_commit(self, xid: Xid | None = None) -> None:
        """Second phase of the current branch (in one phase, if it is not prepared), or of prepared branch *xid*.

        Raises XaError. XAER_RMFAIL: unknown, ask again. XAER_NOTA: that branch is not prepared (any more).
        """
        await run(self.rules.tpc_commit, xid)

    async def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Undo the current branch, prepared or not, or prepared branch *xid*. Raises XaError as tpc_commit."""
        await run(self.rules.tpc_rollback, xid)

    async def tpc_status(self, xid: Xid, broker_id: int) -> BranchStatus | None:
        """What broker *broker_id* knows of a branch under this producer's qualifier, finished ones too.

        None: that broker does not know the question (extension `status`). Raises XaError (XAER_RMFAIL).
        """
        return await run(self.rules.tpc_status, xid, broker_id)

    async def tpc_forget(self, xid: Xid) -> None:
        """Drop the heuristic outcome of *xid* at its broker, once somebody has looked at it. Raises XaError."""
        await run(self.rules.tpc_forget, xid)

    async def tpc_recover(self) -> list[Xid]:
        """Prepared branches, and heuristic outcomes, under this producer's qualifier: all of them, on all brokers.

        Raises XaError (XAER_RMFAIL) if a broker can't be asked or is known to have crashed: see tpc_list.
        """
        return await run(self.rules.tpc_recover)

    async def tpc_list(self) -> Listing:
        """As tpc_recover, broker by broker, with those that could not be asked. Raises XaError if ZooKeeper is away."""
        return await run(self.rules.tpc_list)

    @property
    def tpc_branch(self) -> Branch | None:
        """The current branch: its xid, the id of the broker that has it, and its state."""
        return self.rules.tpc_branch
