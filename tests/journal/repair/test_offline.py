"""Reading the state of a directory whose writer is alive."""

from pathlib import Path

import pytest

from journal.errors import CorruptJournal
from journal.repair.offline import read_state
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.scan import ScanEnd, Scanner
from journal.wal.segments import segment_base
from journal.wal.storage import DirectoryStorage
from tests.fixtures.journals import ORDERS, open_store


def put(store: JournalTransactionStore, bytes_each: int = 100) -> None:
    """Put and flush twice: the second record names the first as durable."""
    for _ in range(2):
        store.put(ORDERS, [bytes(bytes_each)], bytes_each, 1)
        store.journal.wait_flushed(store.journal.end)


def test_records_that_come_during_the_reading_are_no_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage)
    put(store)
    judge_end, late = Scanner.judge_end, iter(range(3))

    def judge_later(scanner: Scanner) -> ScanEnd:
        if next(late, None) is not None:
            put(store)
        return judge_end(scanner)

    monkeypatch.setattr(Scanner, "judge_end", judge_later)
    with read_state(tmp_path) as (state, _):
        assert state.lsn == store.journal.end
    damaged = next(path for path in tmp_path.iterdir() if segment_base(path.name) == 0)
    content = bytearray(damaged.read_bytes())
    content[store.journal.end - 250] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CorruptJournal), read_state(tmp_path):
        pass
    store.close()
    storage.close()
