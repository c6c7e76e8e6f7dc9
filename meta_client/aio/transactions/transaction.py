"""A row and a message, both or neither, as an `async with` block, with the rules of
meta_client/transactions/transaction.py. Owner's task only."""

from collections.abc import Awaitable, Generator
from typing import Any, Self

from meta_client.aio.bridge.bridge import run, run_shielded
from meta_client.aio.producer.producer import BranchHandle, Producer
from meta_client.errors import TransactionMisuse
from meta_client.transactions.steps import CommitStep
from meta_client.transactions.transaction import Transaction as Rules
from zk.forks import invalidate_after_fork, skip_after_fork
from zk.tree.nodes import Partition


class Transaction:
    """One use of `Client.transaction`: the caller's database transaction and the messages sent with it. Used once, by
    the task that enters it; `join` hands it over."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._unsent: set[_Sending] = set()
        invalidate_after_fork(self)

    @property
    def gtrid(self) -> str:
        """Name of the transaction, shared by its branches and its row. Raises TransactionMisuse until it is entered."""
        return self._rules.gtrid

    @property
    def step(self) -> CommitStep | None:
        """Last step taken; None before entry."""
        return self._rules.step

    def send(
        self, topic: str, payload: bytes, attribute: str | None = None, partition: Partition | str | None = None
    ) -> Awaitable[BranchHandle]:
        """Send one message as part of the transaction, to any topic on any broker, when awaited. Does not wait for the
        broker: the message travels with its PREPARE at the latest, and the block's end raises PrepareFailed if it is
        missing there.

        Await the handle, too, for where the message went. Raises NoPartition, NoBroker, LocalProtocolError and
        TypeError for a message that can't be sent at all, TransactionMisuse in another task and once the block is over.
        A block with a `send` that was not awaited to its end is rolled back with TransactionMisuse.
        """
        return _Sending(self, topic, payload, attribute, partition)

    def join(self, producer: Producer | None = None) -> None:
        """Make everything *producer* sends until the block ends part of the transaction, with its partitioner and
        compression. Without a producer, make the calling task the owner of the block. Raises TransactionMisuse."""
        self._rules.join(None if producer is None else producer.rules)

    async def __aenter__(self) -> Self:
        """Begin. Raises CannotEnlist (NoDecisionTable, CopiedTable), TransactionMisuse, Unreachable; then, and after a
        cancellation here, the connection is unchanged."""
        is_entered = False

        def enter() -> None:
            nonlocal is_entered
            self._rules.__enter__()
            is_entered = True

        try:
            await run_shielded(enter)
        except BaseException as error:
            if is_entered:
                await run_shielded(self._rules.__exit__, type(error), error, None)
            raise
        self._rules.join()
        return self

    @skip_after_fork
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit rows and messages, or roll both back if the block raised.

        On return the database has committed and COMMIT was sent to the brokers; with *wait* they have committed, too.
        Raises as meta_client's Transaction. A task cancelled before COMMIT is sent rolls both back; after that it waits
        for the answer: `step` tells which. A resolver finishes unconfirmed branches.
        """
        misuse: TransactionMisuse | None = None
        if error is None and self._unsent:
            misuse = TransactionMisuse(
                f"{len(self._unsent)} messages may not have been sent, and the block is rolled back: `await "
                f"transaction.send(...)`, and let out what ends it"
            )
            kind, error = TransactionMisuse, misuse
        await run_shielded(self._rules.__exit__, kind, error, trace)
        if misuse is not None:
            raise misuse


class _Sending:
    """One call of `send`."""

    def __init__(self, transaction: Transaction, *message: Any) -> None:
        self._transaction = transaction
        self._message = message
        transaction._unsent.add(self)

    def __await__(self) -> Generator[Any, None, BranchHandle]:
        return self._sent().__await__()

    async def _sent(self) -> BranchHandle:
        transaction = self._transaction
        try:
            handle = await run(transaction._rules.send, *self._message)
        except Exception:
            transaction._unsent.discard(self)  # rejected for certain: the caller gets the error
            raise
        transaction._unsent.discard(self)
        return BranchHandle(handle)
