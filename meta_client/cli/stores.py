"""Where a group keeps its offsets, as a user names it: ZooKeeper, a database, a directory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from meta_client.client import Client
from meta_client.consumer.offsets import OffsetStore, ZooKeeperOffsetStore
from meta_client.offset_stores.errors import NoDatabase
from meta_client.offset_stores.local_file import LocalOffsetStore
from meta_client.offset_stores.places import TABLE

store_option = click.option(
    "--store", metavar="URL|DIR", help="The group keeps its offsets in this database, or this directory."
)


@contextlib.contextmanager
def opened_store(
    client: Client, group: str, store: str | None, *, is_for_reading: bool = False
) -> Iterator[OffsetStore]:
    """The offsets of *group*; *is_for_reading* makes no store where there is none.

    Raises NoDatabase for that, and for all that a database says, and OffsetStoreErrors.
    """
    if store is None:
        yield ZooKeeperOffsetStore(client.session, group)
    elif "://" in store:
        from meta_client.offset_stores import SqlOffsetStore  # which needs an extra

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
    """Of what a database says, the first line: the statement and its parameters follow. Raises NoDatabase."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise NoDatabase(f"the database of --store: {str(error).partition(chr(10))[0]}") from error
