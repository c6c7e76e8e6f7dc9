"""PostgreSQL, one broker, and a client: the world of the transactions' tests."""

from tests.meta_client.transactions.conftest import world

__all__ = ["world"]
