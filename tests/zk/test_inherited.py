"""Objects of a parent in a forked child: nothing is left of them except `close`."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from zk.forks import CreatedBeforeFork, Inherited, detach_descriptor


class OfParent(Inherited):
    _was = "Client"


class OfTransaction(Inherited):
    _was = "PostgresTransaction"


def test_every_use_is_refused_and_leaving_its_block_is_not() -> None:
    inherited = OfParent()
    assert isinstance(inherited, OfParent)
    inherited.close()
    for use in (lambda: inherited.send, lambda: setattr(inherited, "x", 1), inherited.__enter__):
        with pytest.raises(CreatedBeforeFork):
            use()
    inherited.__exit__(None, None, None)


def test_a_transaction_does_not_seem_committed() -> None:
    inherited, error = OfTransaction(), ValueError()
    inherited.__exit__(ValueError, error, None)
    with pytest.raises(CreatedBeforeFork):
        inherited.__exit__(None, None, None)
    with pytest.raises(CreatedBeforeFork):
        asyncio.run(inherited.__aexit__(None, None, None))


def test_a_descriptor_is_replaced_unless_it_is_closed() -> None:
    with tempfile.TemporaryFile() as file:
        detach_descriptor(file)
        assert os.path.samestat(os.fstat(file.fileno()), Path(os.devnull).stat())

    class Closed:
        def fileno(self) -> int:
            return -1

    detach_descriptor(Closed())
