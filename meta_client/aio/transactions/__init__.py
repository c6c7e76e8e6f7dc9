"""A database row and a message, both or neither, for tasks: the rules of meta_client.transactions, run in tasks.

    async with client.transaction(connection) as transaction:
        await connection.execute("INSERT INTO orders ...")
        await transaction.send("orders", b"...")

Read: private_loop (a table used by a thread) -> postgres, asyncpg, drivers, sqlalchemy, databases (connections) ->
shield (statements protected from cancellation) -> transaction. docs/transactions-reasoning.md says why it is safe.
"""

from meta_client.aio.transactions.transaction import Transaction

__all__ = ["Transaction"]
