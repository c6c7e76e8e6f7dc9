"""A group's offset store as named by a user: ZooKeeper, a database, a directory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from meta_client.client import Client
from meta_client.consumer.offset_stores.local_file import LocalOffsetStore
from meta_client.consumer.offset_stores.row_key import TABLE
from meta_client.consumer.offsets import OffsetStore, ZooKeeperOffsetStore
from meta_client.errors import NoDatabase

store_option = click.option(
    "--store", metavar="URL|DIR", help="Database or directory in which the group keeps its offsets."
)


@contextlib.contextmanager
def opened_store(
    client: Client, group: str, store: str | None, *, is_for_reading: bool = False
) -> Iterator[OffsetStore]:
    """Open the offsets of *group*; with *is_for_reading* a missing store is not created.

    Raises NoDatabase for that and for the database's errors, and OffsetStoreErrors.
    """
    if store is None:
        yield ZooKeeperOffsetStore(client.session, group)
    elif "://" in store:
        from meta_client.consumer.offset_stores import SqlOffsetStore  # which needs an extra

        url, _, table = store.partition("#")
        connects = SqlOffsetStore.open_for_reading if is_for_reading else SqlOffsetStore
        with connects(url, group, table or TABLE) as in_database, _told_in_a_line():
            yield in_database
    else:
        if is_for_reading and not Path(store).is_dir():
            raise NoDatabase(f"there is no directory {store}: name that of a LocalOffsetStore, or an SQLAlchemy URL")
        opens = LocalOffsetStore.open_for_reading if is_for_reading else LocalOffsetStore.open
        with opens(store, group) as in_file:
            yield in_file


@contextlib.contextmanager
def _told_in_a_line() -> Iterator[None]:
    """Raise a database's error as NoDatabase with its first line: the statement and its parameters follow."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise NoDatabase(f"the database of --store: {str(error).partition(chr(10))[0]}") from error
