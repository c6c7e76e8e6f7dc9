"""`metaq journal` on real directories, dead and live: what it prints, its exit status, and that it changes nothing."""

import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from journal.records.header import RecordType
from journal.records.record import PartitionName
from journal.repair.check import check
from journal.repair.damage import Damage, UnknownLoss
from journal.state.inspection import read_checkpoints
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segments import Segments, segment_base, segment_name
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.journal import journal
from meta_broker.cli.journal_text import report_lines
from tests.fixtures.forked import run_metaq
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, open_store, xa


def metaq(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_metaq(*arguments)


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(journal, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def fill(store: JournalTransactionStore) -> None:
    """A put, a committed branch, a checkpoint, a prepared branch; each fsynced before the next."""
    store.put(ORDERS, [b"x" * 1000], 1000, 10)
    for name in ("done", "in doubt"):
        branch = store.begin(xa(name.replace(" ", "-")))
        for partition in (ORDERS, STOCK):
            store.transactional_put(branch, partition, [b"y" * 700], 700, 7)
            store.journal.wait_flushed(store.journal.end)
        store.prepare(branch)
        store.journal.wait_flushed(store.journal.end)
        if name == "done":
            store.commit(branch, one_phase=False)
            taken = store.snapshot()
            store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
    store.journal.wait_flushed(store.journal.end)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that nobody holds."""
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    store = open_store(storage)
    fill(store)
    store.close()
    storage.close()
    return tmp_path / "data"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, JournalTransactionStore]]:
    """A data directory that a running store holds."""
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    store = open_store(storage)
    fill(store)
    yield tmp_path / "data", store
    store.close()
    storage.close()


def lsn_of(data: Path, kind: RecordType) -> int:
    """The LSN of the first record of a kind."""
    segments = Segments.open(DirectoryStorage.open_for_reading(data), None, SEGMENT_BYTES, writable=False)
    try:
        return next(entry.header.lsn for entry in Scanner(segments, segments.start) if entry.header.record_type == kind)
    finally:
        segments.close()


def flip(data: Path, lsn: int) -> None:
    path = data / segment_name(lsn - lsn % SEGMENT_BYTES)
    raw = bytearray(path.read_bytes())
    raw[lsn % SEGMENT_BYTES] ^= 0x20
    path.write_bytes(raw)


def test_dump_is_a_line_a_record(data: Path) -> None:
    status, out, err = run("dump", data)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert [line.split()[2] for line in lines] == [
        *("EPOCH", "PUT", "TX_PUT", "TX_PUT", "PREPARE", "COMMIT", "CHECKPOINT", "TX_PUT", "TX_PUT", "PREPARE"),
    ]
    lsn = lsn_of(data, RecordType.COMMIT)
    assert lines[5].strip().startswith(f"{lsn} 2023-11-14T22:13:20.0")
    assert (
        f"COMMIT     1.1 durable={lsn}  {xa('done')}  orders-0@1000+700 (7)  stock-3@0+700 (7)  two phases" in lines[5]
    )
    assert lines[2].endswith(f"{xa('done')}  orders-0+700 (7)  begins the branch")


def test_dump_as_json(data: Path) -> None:
    status, out, _ = run("dump", data, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    commit = next(each for each in objects if each["kind"] == "COMMIT")
    assert commit["key"] == str(xa("done"))
    assert commit["places"] == [
        {"topic": "orders", "partition": 0, "base": 1000, "bytes": 700, "count": 7},
        {"topic": "stock", "partition": 3, "base": 0, "bytes": 700, "count": 7},
    ]
    assert (commit["bytes"], commit["epoch"], commit["incarnation"]) == (1400, 1, 1)
    assert commit["durable"] <= commit["lsn"]


def test_dump_chooses(data: Path) -> None:
    count: Callable[..., int] = lambda *options: len(run("dump", data, *options)[1].splitlines())  # noqa: E731
    assert count("--kind", "tx_put") == 4
    assert count("--kind", "PUT", "--kind", "COMMIT") == 2
    assert count("--limit", 3) == 3
    assert count("--kind", "TX_PUT", "--limit", 3) == 3
    assert count("--from", lsn_of(data, RecordType.COMMIT)) == 5
    assert count("--from", lsn_of(data, RecordType.COMMIT) - 1) == 5
    status, _, err = run("dump", data, "--from", 10**9)
    assert status == 2
    assert "LSN 1000000000 is not in" in err


def test_check_of_a_whole_journal(data: Path) -> None:
    status, out, err = run("check", data)
    assert (status, err) == (0, "")
    end = json.loads(run("check", data, "--json")[1])["end"]
    assert out.splitlines()[1:] == [
        f"checkpoint.1: agrees with the records below LSN {lsn_of(data, RecordType.CHECKPOINT)}",
        f"in doubt: {xa('in-doubt')}",
        f"whole: every record up to LSN {end} reads back",
    ]
    assert "journal of broker 7 of cluster 'test', 10 records of " in out.splitlines()[0]


def test_check_as_json(data: Path) -> None:
    status, out, _ = run("check", data, "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["verdict"], report["sound"], report["held"], report["records"]) == ("whole", True, False, 10)
    assert report["prepared"] == [str(xa("in-doubt"))]
    assert report["affected"] == {"lsns": [], "unreadable": [], "offsets": [], "branches": [], "unknown": []}
    assert report["checkpoints"][0]["problems"] == []


def test_a_torn_tail_is_status_0_and_names_the_start_that_truncates_it(data: Path) -> None:
    end = json.loads(run("check", data, "--json")[1])["end"]
    flip(data, end + 100)
    status, out, _ = run("check", data)
    assert status == 0
    assert f"torn tail at LSN {end} (no record): no fsync of what stands there ever returned; " in out
    assert "the next start of the broker cuts it" in out
    status, out, err = run("dump", data)
    assert (status, len(out.splitlines())) == (0, 10)
    assert err.startswith(f"torn tail at LSN {end} ")


def test_corruption_is_status_1_with_the_loss(data: Path) -> None:
    lsn = lsn_of(data, RecordType.COMMIT)
    flip(data, lsn + 60)
    status, out, _ = run("check", data)
    assert status == 1
    assert f"corrupt at LSN {lsn} (header checksum): what was once fsynced there does not read back" in out
    report = json.loads(run("check", data, "--json")[1])
    assert (report["verdict"], report["sound"], report["end"]) == ("corrupt", False, lsn)
    assert [(each["topic"], each["start"], each["end"]) for each in report["affected"]["offsets"]] == [
        ("orders", 1000, 1700),
        ("stock", 0, 700),
    ]
    assert "affected: orders-0 from offset 1000 to 1700: stood there, or was committed there" in out
    assert f"affected: branch {xa('done')}: live before it; its outcome may stand there" in out
    assert f"in doubt at LSN {lsn}: {xa('done')}" in out.splitlines(), "whether it is still is unknown"


def test_dump_stops_at_corruption_and_says_how_to_go_on(data: Path) -> None:
    lsn = lsn_of(data, RecordType.COMMIT)
    flip(data, lsn)
    status, out, err = run("dump", data)
    assert (status, len(out.splitlines())) == (1, 5)
    assert err.startswith(f"corrupt at LSN {lsn} (header checksum): go on with --from ")
    behind = err.split()[-1]
    status, out, _ = run("dump", data, "--from", behind)
    assert (status, len(out.splitlines())) == (0, 4)


@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_corrupt_segment_header_is_status_1(data: Path, command: str) -> None:
    flip(data, SEGMENT_BYTES + 20)
    status, out, err = run(command, data)
    assert status == 1
    assert f"corrupt at LSN {SEGMENT_BYTES} (segment header checksum)" in out + err
    if command == "check":
        assert "unknown: what is affected of any partition: no record was read" in out
        report = json.loads(run("check", data, "--json")[1])
        assert (report["verdict"], report["end"], report["sound"]) == ("corrupt", SEGMENT_BYTES, False)
        assert report["affected"]["unknown"] == [{"bytes": None, "partitions": [], "why": "no record was read"}]


def test_a_missing_segment_names_the_bytes_it_may_have_held(data: Path) -> None:
    storage = DirectoryStorage.open_for_writing(data)
    store = open_store(storage)
    for _ in range(10):
        store.put(ORDERS, [b"x" * 1000], 1000, 10)
    store.close()
    storage.close()
    bases = sorted(base for path in data.iterdir() if (base := segment_base(path.name)) is not None)
    (data / segment_name(bases[1])).unlink()
    status, out, _ = run("check", data)
    size = bases[2] - bases[1]
    assert (status, f"unknown: what is affected, up to {size} bytes of any partition" in out) == (1, True)
    status, out, _ = run("repair", data)
    assert (status, f"unknown: up to {size} bytes of any partition" in out) == (1, True)


def test_a_damaged_checkpoint_is_status_1(data: Path) -> None:
    path = data / "checkpoint.1"
    path.write_bytes(path.read_bytes().replace(b"orders", b"0rders"))
    status, out, _ = run("check", data)
    assert status == 1
    assert "checkpoint.1: does not read back: checksum" in out


@pytest.mark.parametrize("command", ["check", "dump"])
def test_what_is_no_journal_is_status_2_in_one_line(tmp_path: Path, command: str) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        done = metaq("journal", command, str(directory))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_another_version_is_status_2_in_one_line(data: Path) -> None:
    path = data / segment_name(0)
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    raw[124:128] = struct.pack("<I", zlib.crc32(raw[:124]))
    path.write_bytes(raw)
    done = metaq("journal", "check", str(data))
    assert (done.returncode, done.stdout) == (2, "")
    assert "journal format 9, this metaq reads 1: use the metaq that wrote it" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_exit_status_reaches_the_shell(data: Path) -> None:
    assert metaq("journal", "check", str(data)).returncode == 0
    flip(data, lsn_of(data, RecordType.PUT))
    assert metaq("journal", "check", str(data)).returncode == 1
    assert metaq("journal", "dump", str(data)).returncode == 1


def test_a_live_directory_reads_as_it_is(live: tuple[Path, JournalTransactionStore]) -> None:
    data, store = live
    assert json.loads(run("check", data, "--json")[1])["held"] is True
    for number in range(50):
        store.put(PartitionName("live", 0), [b"z" * 300], 300, 1)
        if number % 10 == 0:  # in the middle of what the writer does
            status, out, _ = run("check", data, "--json")
            report: dict[str, Any] = json.loads(out)
            assert (status, report["sound"]) == (0, True), report
            assert report["verdict"] in ("whole", "torn tail")


def test_nothing_is_changed(data: Path) -> None:
    def content() -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in data.iterdir()}

    flip(data, lsn_of(data, RecordType.COMMIT))
    before = content()
    run("check", data)
    run("dump", data)
    assert content() == before


def test_what_a_disk_holds_cannot_steer_a_terminal(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage)
    store.put(PartitionName("\x1b[2J\r\nevil", 0), [b"x"], 1, 1)
    store.close()
    storage.close()
    _, out, _ = run("dump", tmp_path)
    assert "\\x1b[2J\\r\\nevil-0@0+1 (1)" in out
    assert len(out.splitlines()) == 2
    assert not any(letter in out for letter in "\x1b\r")


def test_checkpoints_are_read_before_the_segments(data: Path) -> None:
    assert list(read_checkpoints(DirectoryStorage.open_for_reading(data))) == [1]


def test_contradictions_gaps_and_who_writes_are_told(live: tuple[Path, JournalTransactionStore]) -> None:
    data, _ = live
    segments = Segments.open(DirectoryStorage.open_for_reading(data), None, SEGMENT_BYTES, writable=False)
    report = check(segments, {})
    segments.close()
    unknown = [UnknownLoss(70, (ORDERS, STOCK), "no record names them"), UnknownLoss(8, (), "none is left")]
    told = list(
        report_lines(
            replace(report, verdict=EndVerdict.CORRUPT, contradiction="no\nbranch", damage=Damage(unknown=unknown)),
            data,
            is_held=True,
        )
    )
    assert "contradiction: no\\nbranch" in told
    assert told[-2:] == [
        "unknown: up to 70 bytes of partitions orders-0, stock-3, and perhaps of others: no record names them",
        "unknown: up to 8 bytes of any partition: none is left",
    ]
    torn = [
        list(report_lines(replace(report, verdict=EndVerdict.TORN), data, is_held=held))[-1] for held in (True, False)
    ]
    assert ["the broker that runs here is writing there" in line for line in torn] == [True, False]
