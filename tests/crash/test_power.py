"""The power cut of a killed broker: bytes that it takes, and bytes that it leaves."""

from pathlib import Path

from journal.wal.storage import DirectoryStorage
from tests.fixtures.journals import open_store
from tests.fixtures.power import cut_power


def test_the_beginning_of_an_epoch_was_fsynced_before_anything_was_served(tmp_path: Path) -> None:
    """Taken away, its number would be given twice, to other bytes: no disk that fsyncs does that."""
    begun: list[int] = []
    for _ in range(3):
        storage = DirectoryStorage.open_for_writing(tmp_path)
        store = open_store(storage)
        begun.append(store.state.incarnation)
        store.journal.close()
        storage.close()
        assert cut_power(tmp_path) == 0
    assert begun == [1, 2, 3]
