"""Fixtures of the demo's tests."""

from tests.fixtures.postgres import database, postgres_server

__all__ = ["database", "postgres_server"]
