"""Commits a database row and a message together: the decision is a row of the caller's own database transaction.

    with client.transaction(connection) as transaction:
        connection.execute("INSERT INTO orders ...")
        transaction.send("orders", b"...")

Read: names, steps, table (requirements on a database), errors -> dialects, statements, deciding (base of all drivers'
sessions) -> postgres_table, postgres_block, postgres, sqlite -> dbapi (plain PEP 249), postgres_plain, mysql ->
drivers, sqlalchemy, databases -> branches (before prepare), brokers (after it) -> generation (restored databases) ->
resolver -> resolver_thread -> commit_sequence -> manager -> transaction.
docs/transactions-reasoning.md says why it is safe.
"""

from meta_client.transactions.errors import CopiedTable, NoDecisionTable, NotConfirmed
from meta_client.transactions.manager import TransactionConfig
from meta_client.transactions.resolver_state import Counts
from meta_client.transactions.steps import CommitStep
from meta_client.transactions.transaction import Transaction

__all__ = ["CommitStep", "CopiedTable", "Counts", "NoDecisionTable", "NotConfirmed", "Transaction", "TransactionConfig"]
