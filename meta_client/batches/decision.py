"""The decision about a query's newest batch: a node in ZooKeeper that names the branches to commit.

Writing it, by compare-and-set, commits the batch, no matter which process carries it out. A batch
without it is rolled back. One node a query, below ``/meta/metaq/spark/``: Spark repeats no batch but the newest.
"""

from enum import Enum
from typing import Final

import msgspec

from meta_client.batches.names import BatchName, BranchName
from zk.brokers.json_node import JsonNode
from zk.session.session import ZooKeeperSession
from zk.tree.paths import QueryKey

NODE_BYTES_MAX: Final = 900_000  # ZooKeeper takes a megabyte, its own bytes included
NOTHING: Final = -1  # batch of a node that only forbids earlier decisions, or tells that a write has begun


class SinkFailed(RuntimeError):
    """A batch could not be written or decided. The text says what is true of it."""


class BatchOutcome(Enum):
    """Outcome of one branch, as its query has decided."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    OPEN = "open"  # its batch is not decided: its query decides, now or when it is started again


class BatchDecision(msgspec.Struct, frozen=True):
    """Batch *batch* commits *branches*, and no others. *is_done*: every broker has confirmed. *plan*: digest of what
    makes it this batch and no other of its number; blank if nothing does."""

    batch: int
    branches: tuple[BranchName, ...] = ()
    is_done: bool = False
    plan: str = ""

    def outcome_of(self, batch: int, branch: BranchName) -> BatchOutcome:
        """Return the outcome of *branch* of *batch*. An earlier batch was finished before this one was decided."""
        if batch > self.batch and self != OVER:
            return BatchOutcome.OPEN
        is_named = batch == self.batch and branch in self.branches
        return BatchOutcome.COMMIT if is_named else BatchOutcome.ROLLBACK


OVER: Final = BatchDecision(NOTHING, is_done=True)  # of a write that nobody can repeat, when its node is gone


_NODES = JsonNode(BatchDecision, QueryKey, 1024 * 1024, "a batch number and its branches")
decode_decision = _NODES.decode


class Decisions:
    """The node of one query. One thread; every method raises ZooKeeperUnavailable, MalformedNode."""

    def __init__(self, session: ZooKeeperSession, query: str) -> None:
        self._session = session
        self._query = query
        self._is_repeatable = BatchName(query, 0).is_repeatable

    def begin(self) -> None:
        """Make the node of a write that nobody can repeat; it is OVER before, and after `delete`."""
        self._write(BatchDecision(NOTHING), None)

    def read(self) -> BatchDecision:
        """Return the newest decision; one about batch NOTHING if there is none, and OVER if there can't be any."""
        return self._read()[0]

    def version(self) -> int | None:
        """Return the version of the node; None without one. Every `forbid` changes it."""
        return self._read()[1]

    def decide(
        self,
        name: BatchName,
        branches: tuple[BranchName, ...],
        plan: str = "",
        seen: frozenset[int | None] = frozenset(),
    ) -> BatchDecision:
        """Decide that *branches* are the batch, unless something is decided about it or a later one: return what
        stands. Durable on return. If it raises, it may have happened: decide again, or `forbid`. *seen*: the `version`
        before each of *branches* was prepared; none: nobody else runs the batch.

        Raises SinkFailed, with nothing decided, for more branches than a node holds, and if another run of the batch
        was given up since: it has rolled back what it found prepared.
        """
        wanted = BatchDecision(name.batch, branches, plan=plan)
        if len(msgspec.json.encode(wanted)) > NODE_BYTES_MAX:
            raise SinkFailed(f"{len(branches)} branches are more than a decision can name: repartition to fewer tasks")
        while True:
            before, version = self._read()
            if before.batch >= name.batch:
                return before
            if seen - {version}:
                raise SinkFailed(
                    f"{name.gtrid} ran twice at once, and the other run was given up, with rows of this one: let one "
                    f"run end, then repeat it"
                )
            if self._write(wanted, version) is not None:
                return wanted

    def forbid(self, name: BatchName) -> bool:
        """Make sure that no decision about the batch that was begun before can still be written. False: there is one
        about it, or about a later batch."""
        while True:
            before, version = self._read()
            if before.batch >= name.batch:
                return False
            if self._write(before, version) is not None:
                return True

    def mark_done(self, decision: BatchDecision) -> None:
        """Record that every broker has confirmed *decision*: nobody asks for that of a write that nobody can repeat."""
        if not self._is_repeatable:
            self.delete()
            return
        before, version = self._read()
        if before == decision and not decision.is_done:
            self._write(msgspec.structs.replace(decision, is_done=True), version)  # else another has done the same

    def delete(self) -> None:
        """Delete the node of a write that nobody can repeat."""
        self._session.delete(self._session.paths.of(QueryKey(self._query)))

    def _read(self) -> tuple[BatchDecision, int | None]:
        found = _NODES.read(self._session, self._query)
        missing = BatchDecision(NOTHING) if self._is_repeatable else OVER
        return missing if found.node is None else found.node, found.version

    def _write(self, decision: BatchDecision, version: int | None) -> int | None:
        return _NODES.write(self._session, self._query, decision, version)


def known_queries(session: ZooKeeperSession) -> list[str]:
    """Return the queries and writes that have a decision. Raises ZooKeeperUnavailable."""
    return session.children(f"{session.paths.root}/metaq/spark")
