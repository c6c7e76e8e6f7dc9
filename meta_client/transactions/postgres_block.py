"""psycopg's transaction block, with MARK in the same request as BEGIN.

psycopg waits for each statement, and a wait costs client and server more than this statement does. A method of
psycopg's own is overridden: `is_marked` stays False with a version that does not call it.
"""

from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import errors, generators
from psycopg.pq import ExecStatus
from psycopg.transaction import BaseTransaction

from meta_client.transactions.postgres_table import GUARDED_COMMIT, MARK


class MarkedBlock(BaseTransaction[Any]):
    """Parts that the blocks of threads and tasks share."""

    is_marked = False
    is_recorded = False  # the decision's row is inserted

    def _enter_gen(self) -> Generator[Any, Any, None]:
        self.status = self.Status.ACTIVE
        self._push_savepoint()
        yield from self._execute(f"{self._conn._get_tx_start_command().decode()}; {MARK}")
        self.is_marked = True

    def _commit_gen(self) -> Generator[Any, Any, None]:
        if not self.is_recorded:
            yield from super()._commit_gen()
            return
        wrong_nesting = self._pop_savepoint("commit")
        self.status = self.Status.COMMITTED
        if wrong_nesting is not None:
            raise wrong_nesting
        yield from self._execute(GUARDED_COMMIT)

    def _execute(self, text: str) -> Generator[Any, Any, None]:
        """Execute statements in one request, which psycopg itself takes for a mistake."""
        self.pgconn.send_query(text.encode())
        for result in (yield from generators.execute(self.pgconn)):
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                raise errors.error_from_result(result, encoding=self._conn.info.encoding)


class ThreadBlock(MarkedBlock, psycopg.Transaction):
    """The block of a thread."""


class TaskBlock(MarkedBlock, psycopg.AsyncTransaction):
    """The block of a task."""
