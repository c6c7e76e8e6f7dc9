"""Executes statements of ours on a caller's connection, in the caller's transaction: of any driver, or of SQLAlchemy.

Read: core (SQLAlchemy's names) -> executor -> dbapi_executor (through a driver's cursor) -> connections (which
executor a connection gets).
"""
