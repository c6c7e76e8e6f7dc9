"""A database row and a message, both or neither: the decision is a row of the caller's own database transaction.

    with client.transaction(connection) as transaction:
        connection.execute("INSERT INTO orders ...")
        transaction.send("orders", b"...")

Read: names, steps, errors, table (what a database must be able to do) -> statements, postgres, sqlite, databases,
sqlalchemy, django -> branches (while it works), brokers (once it is prepared) -> committing (the order) -> resolver ->
background (a thread) -> transaction -> manager. docs/transactions.md says why it is safe.
"""

from meta_client.transactions.errors import CopiedTable, NoDecisionTable
from meta_client.transactions.manager import TransactionConfig
from meta_client.transactions.resolver import Counts
from meta_client.transactions.steps import Step
from meta_client.transactions.transaction import Transaction

__all__ = ["CopiedTable", "Counts", "NoDecisionTable", "Step", "Transaction", "TransactionConfig"]
