"""Refusals of a directory in memory, the same as a real one's."""

import pytest

from journal.errors import StorageFailed
from meta_broker.testing.memory.storage import MemoryStorage


def test_a_link_hides_no_other_file() -> None:
    storage = MemoryStorage()
    storage.replace("a", b"1")
    storage.replace("b", b"2")
    for _ in range(2):
        storage.link("a", "kept-a")
    with pytest.raises(StorageFailed, match="kept-a: it is another file already"):
        storage.link("b", "kept-a")
    assert storage.read("kept-a") == b"1"


def test_names_that_are_not_there() -> None:
    storage = MemoryStorage()
    for step in (storage.read, storage.remove, storage.rename_into_place, lambda name: storage.link(name, "b")):
        with pytest.raises(StorageFailed, match="No such file"):
            step("a")
    assert storage.names() == []


def test_no_memory() -> None:
    storage = MemoryStorage()
    with pytest.raises(StorageFailed, match="memory/a: Cannot allocate memory"):
        storage.create("a", 1 << 60, b"")
    assert storage.names() == []
