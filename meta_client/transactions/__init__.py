"""A database row and a message, both or neither: the decision is a row of the caller's own database transaction.

Read: names, steps, errors, table (what a database must be able to do) -> statements, postgres, sqlite, databases.
"""
