"""`metaq journal truncations` on real directories."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from journal.state.truncation import truncate
from journal.wal.scan import Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.journal import journal
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, STOCK, open_store, xa

NOW_MS = 1_700_000_000_123


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(journal, ["truncations", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A former master's directory: three messages and a branch in doubt were cut off, over two segments."""
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    store = open_store(storage)
    store.put(ORDERS, [b"x" * 1000], 1000, 10)
    lsn = store.journal.end
    store.put(ORDERS, [b"y" * 2500], 2500, 2)
    branch = store.begin(xa("in-doubt"))
    store.transactional_put(branch, STOCK, [b"z" * 700], 700, 7)
    store.prepare(branch)
    store.put(ORDERS, [b"!" * 50], 50, 1)
    store.close()
    assert truncate(storage, IDENTITY, lsn, NOW_MS) is not None
    storage.close()
    return tmp_path / "data"


def test_saved_tails_are_listed_for_people(data: Path) -> None:
    (name,) = [path.name for path in data.glob("cut.*")]
    status, text = run(data)
    first, *rest = text.splitlines()
    assert status == 0
    assert first.startswith(f"{name}: LSN ")
    assert first.endswith("4 records of epoch 1 and before, 3 messages")
    assert rest == ["  orders-0: offsets 1000 to 3550, 3 messages", f"  in doubt there: {xa('in-doubt')}"]


def test_saved_tails_are_listed_for_scripts(data: Path) -> None:
    status, text = run(data, "--json")
    found = json.loads(text)
    assert status == 0
    assert (found["epoch"], found["incarnation"], found["time_ms"]) == (1, 1, NOW_MS)
    assert found["file"] == f"cut.{found['lsn']}-{found['end']}.1"
    assert found["tail"]["ranges"] == {"orders-0": [1000, 3550, 3]}
    assert found["tail"]["prepared"] == {"count": 1, "keys": [str(xa("in-doubt"))]}


def test_what_is_left_is_a_journal(data: Path) -> None:
    storage = DirectoryStorage.open_for_reading(data)
    segments = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=False)
    assert len(list(Scanner(segments, segments.start))) == 2
    segments.close()


@pytest.mark.parametrize(("at", "reason"), [(20, "header checksum"), (400, "does not continue the journal")])
def test_a_damaged_file_is_named(data: Path, at: int, reason: str) -> None:
    (path,) = data.glob("cut.*")
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    status, text = run(data)
    assert status == 1
    assert path.name in text
    assert reason in text
    status, text = run(data, "--json")
    assert status == 1
    assert reason in json.loads(text)["error"]


def test_a_directory_without_any(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, f"nothing was cut off the journal in {tmp_path}\n")
    assert run(tmp_path, "--json") == (0, "")
