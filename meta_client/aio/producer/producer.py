"""Sending messages from tasks: plain, in local transactions, or in XA branches. The twin of producer/producer.py.

That file's rules run in tasks here (bridge.py).
"""

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, Self

from journal.records.xid import LocalKey, Xid
from meta_client.aio.bridge.bridge import run, wait
from meta_client.aio.producer.sender import Sender, SendHandle, until_all_settled
from meta_client.producer.branch_batch import BranchHandle as ThreadedBranchHandle
from meta_client.producer.interfaces import ClientParts
from meta_client.producer.local_transaction import LocalTransaction as Rules
from meta_client.producer.many_sends import FailedMessages, JoinedHandle
from meta_client.producer.many_sends import SendManyHandle as ThreadedManyHandle
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import Compression, encode_message, parse_partition
from meta_client.producer.partitioners import Partitioner
from meta_client.producer.producer import SEND_TIMEOUT_S
from meta_client.producer.producer import Producer as ProducerRules
from meta_client.producer.results import SendResult
from meta_client.producer.xa_branch import ProducerBranch
from meta_client.producer.xa_verbs import Listing
from meta_client.protocol.answers import BranchStatus
from meta_client.tracing import TRACING
from zk.forks import ProcessBound, invalidate_after_fork, skip_after_fork
from zk.tree.nodes import Partition


class _Handle:
    """A pending send, with a synchronous interface inside `run`."""

    __slots__ = ("handle",)

    def __init__(self, handle: SendHandle) -> None:
        self.handle = handle

    @property
    def is_done(self) -> bool:
        return self.handle.is_done

    def result(self, timeout_s: float | None = None) -> SendResult:
        return wait(self.handle.result(timeout_s))


class Gatherer:
    """The sender, with a synchronous interface inside `run`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.quick_add = None  # Producer.send_async looks itself

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> _Handle:
        return _Handle(wait(self._sender.add(topic, wanted, flag, body)))

    def add_run(self, topic: str, wanted: Partition | None, run: MessageRun) -> list[RunPart]:
        return wait(self._sender.add_run(topic, wanted, run))

    def flush(self, timeout_s: float | None = None) -> None:
        wait(self._sender.flush(timeout_s))

    def has_pending(self, topic: str, partition: Partition) -> bool:
        return self._sender.has_pending(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        self._sender.push(topic, partition)


class BranchHandle:
    """A pending message of a branch. May be dropped: the branch's PREPARE checks the message nevertheless."""

    __slots__ = ("_handle",)

    def __init__(self, handle: ThreadedBranchHandle) -> None:
        self._handle = handle

    @property
    def is_done(self) -> bool:
        """True if `result` would return at once."""
        return self._handle.is_done

    async def result(self, timeout_s: float | None = None) -> SendResult:
        """Send the message now if it is still buffered; return where it went. Only for the task that owns the branch.
        Raises SendFailed, after which the branch can only be rolled back; XaError."""
        return await run(self._handle.result, timeout_s)

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self.result().__await__()


class SendManyHandle:
    """A pending send of many messages. Loop thread only; may be dropped, they are sent nevertheless."""

    def __init__(self, handle: ThreadedManyHandle | JoinedHandle) -> None:
        self._handle = handle

    def __len__(self) -> int:
        return len(self._handle)

    @property
    def is_done(self) -> bool:
        """True if `result` would return at once."""
        return self._handle.is_done

    async def result(self, timeout_s: float | None = None) -> Sequence[SendResult]:
        """Wait until the broker has acknowledged all messages; return their places, in the order of the call. Raises as
        meta_client.SendManyHandle.result."""
        if isinstance(self._handle, ThreadedManyHandle):
            await until_all_settled(self._handle.batches, timeout_s)
        return await run(self._handle.result, timeout_s)

    def failures(self) -> list[FailedMessages]:
        """Return the messages that were not stored, or may not be, as far as they are settled."""
        return self._handle.failures()

    def __await__(self) -> Generator[Any, None, Sequence[SendResult]]:
        return self.result().__await__()


class LocalTransaction:
    """One transaction of a producer, made by Producer.transaction(). Use as an asynchronous context manager: leaving
    the block commits, an exception rolls back. Owner's task only."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        invalidate_after_fork(self)

    @property
    def key(self) -> LocalKey:
        """The broker's key of the transaction."""
        return self._rules.key

    async def commit(self) -> None:
        """Make the messages visible; durable at the broker on return. Does nothing without messages.

        Raises TransactionFailed (nothing will be visible), TransactionUnknown, TransactionMisuse.
        """
        await run(self._rules.commit)

    async def rollback(self) -> None:
        """Drop the messages. Never fails: an unreachable broker drops them when the connection ends."""
        await run(self._rules.rollback)

    async def __aenter__(self) -> Self:
        self._rules.__enter__()
        return self

    @skip_after_fork
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await run(self._rules.__exit__, kind, error, trace)


class Producer(ProcessBound):
    """Sends messages. Cheap: it owns no task and no socket. Made by Client.producer().

    Outside transactions any task may send. Inside one, only the task that began or last joined it may use the producer;
    others get TransactionMisuse. *qualifier* is shared by producers that finish each other's branches (tpc_recover).
    """

    def __init__(
        self,
        shared: ClientParts,
        sender: Sender,
        qualifier: str | None,
        compression: Compression | None,
        partitioner: Partitioner | None,
    ) -> None:
        """*shared* has a Gatherer over *sender*."""
        self._sender = sender
        self._is_plain = compression is None and partitioner is None
        self._quick_add = sender.quick_add
        invalidate_after_fork(self)
        self.rules = ProducerRules(shared, qualifier, compression, partitioner)
        self.qualifier = self.rules.qualifier

    async def send(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> SendResult:
        """Send one message, wait until the broker has acknowledged it, and return where it went.

        Inside a transaction it becomes part of it. Raises SendFailed: the subclass tells whether the message may be
        stored; LocalProtocolError and zk's InvalidName for a message that can't be sent at all. After cancellation the
        message may be stored or not.
        """
        return await run(self.rules.send, topic, payload, attribute, partition, timeout_s)

    async def send_async(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
    ) -> SendHandle | BranchHandle:
        """Send one message in a batch, without waiting for the broker; `await` the handle for the result.

        Batching and errors are as in meta_client.Producer.send_async. Waits while too many bytes are unacknowledged,
        and yields to other tasks once per batch.
        """
        if self._is_plain and not self.rules.is_in_transaction:
            if (
                partition is None
                and (add := self._quick_add) is not None
                and TRACING.hooks is None
                and (handle := add(topic, payload, None, 0, attribute)) is not None
            ):
                return handle
            wanted = None if partition is None else parse_partition(partition)
            flag, body = encode_message(topic, payload, attribute)
            return self._sender.add_now(topic, wanted, flag, body) or await self._sender.add(topic, wanted, flag, body)
        sent = await run(self.rules.send_async, topic, payload, attribute, partition)
        if isinstance(sent, _Handle):
            return sent.handle
        assert isinstance(sent, ThreadedBranchHandle)
        return BranchHandle(sent)

    async def send_many(
        self, topic: str, payloads: Iterable[bytes], keys: Iterable[str | None] | None = None
    ) -> SendManyHandle:
        """Send many messages as meta_client.Producer.send_many does; `await` the handle for the results.

        Waits while too many bytes are unacknowledged, and yields to other tasks once per batch. After cancellation
        some of them may be sent.
        """
        return SendManyHandle(await run(self.rules.send_many, topic, payloads, keys))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything buffered by send_async, for all producers of the client, and return once it is settled.

        Raises the first SendFailed of any message since the last flush; ReplyTimeout after *timeout_s*.
        """
        await self._sender.flush(timeout_s)

    async def partitions(self, topic: str, timeout_s: float = SEND_TIMEOUT_S) -> tuple[Partition, ...]:
        """Return the partitions that `send` chooses from at this moment, at least one. Raises NoPartition, NoBroker,
        and zk's InvalidName for an invalid topic."""
        return await run(self.rules.partitions, topic, timeout_s)

    def transaction(self, timeout_s: float = 0) -> LocalTransaction:
        """Begin a local transaction: everything this producer sends from now on belongs to it, on one broker.

        Use with `async with`. The broker rolls it back when the connection breaks, and after *timeout_s* (0: never).
        Raises TransactionMisuse while another transaction or branch is open.
        """
        return LocalTransaction(self.rules.transaction(timeout_s))

    async def tpc_begin(self, xid: Xid, topics: Collection[str] = (), timeout_s: float = 0) -> None:
        """Begin XA branch *xid* on a broker that has all of *topics*. Like meta_client.Producer.tpc_begin."""
        await run(self.rules.tpc_begin, xid, topics, timeout_s)

    def join(self) -> None:
        """Make the calling task the owner of the open transaction or branch.

        Other tasks that send meanwhile get TransactionMisuse.
        """
        self.rules.join()

    async def tpc_prepare(self) -> bool:
        """Prepare: afterwards the branch can commit or roll back after any crash. Return False if it was read-only and
        is over. Raises XaError; then roll it back."""
        return await run(self.rules.tpc_prepare)

    async def tpc_commit(self, xid: Xid | None = None) -> None:
        """Commit the current branch (in one phase if it is not prepared), or prepared branch *xid*.

        Raises XaError. XAER_RMFAIL: outcome unknown, ask again. XAER_NOTA: the branch is not prepared (any more).
        """
        await run(self.rules.tpc_commit, xid)

    async def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Undo the current branch, prepared or not, or prepared branch *xid*. Raises XaError as tpc_commit."""
        await run(self.rules.tpc_rollback, xid)

    async def tpc_status(self, xid: Xid, broker_id: int) -> BranchStatus | None:
        """Return what broker *broker_id* knows of a branch under this producer's qualifier, finished ones included.

        None: the broker lacks the extension `status`. Raises XaError (XAER_RMFAIL).
        """
        return await run(self.rules.tpc_status, xid, broker_id)

    async def tpc_forget(self, xid: Xid) -> None:
        """Drop the heuristic outcome of *xid* at its broker, after a person has checked it. Raises XaError."""
        await run(self.rules.tpc_forget, xid)

    async def tpc_recover(self) -> list[Xid]:
        """Return the prepared branches and heuristic outcomes under this producer's qualifier, on all brokers.

        Raises XaError (XAER_RMFAIL) if a broker can't be asked or is known to have crashed, or none is registered: see
        tpc_list.
        """
        return await run(self.rules.tpc_recover)

    async def tpc_list(self) -> Listing:
        """List like tpc_recover, by broker, with the brokers that could not be asked. Raises XaError if ZooKeeper is
        away."""
        return await run(self.rules.tpc_list)

    @property
    def tpc_branch(self) -> ProducerBranch | None:
        """Return the current branch: its xid, its broker's id, and its state."""
        return self.rules.tpc_branch
