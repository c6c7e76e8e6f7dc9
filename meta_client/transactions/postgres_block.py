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

from meta_client.transactions.postgres_table import MARK


class MarkedBlock(BaseTransaction[Any]):
    """Parts that the blocks of threads and tasks share."""

    is_marked = False

    def _enter_gen(self) -> Generator[Any, Any, None]:
        self.status = self.Status.ACTIVE
        self._push_savepoint()
        self.pgconn.send_query(self._conn._get_tx_start_command() + b"; " + MARK.encode())
        for result in (yield from generators.execute(self.pgconn)):
            if result.status != ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result, encoding=self._conn.info.encoding)
        self.is_marked = True


class ThreadBlock(MarkedBlock, psycopg.Transaction):
    """The block of a thread."""


class TaskBlock(MarkedBlock, psycopg.AsyncTransaction):
    """The block of a task."""
