"""`metaq journal repair` on the directory of a real broker, which then serves what is left and says what is not."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from journal.records.header import RecordHeader, RecordType
from journal.records.xid import XaKey, Xid
from journal.wal.scan import Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_client.cli.main import metaq
from meta_client.protocol.requests import Fetch, TransactionVerb
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.replicas import copied_bytes
from tests.fixtures.wire import WireClient

SEGMENT_BYTES = 4 << 20
IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")


def run(*arguments: object) -> tuple[int, list[str], str]:
    result = CliRunner().invoke(metaq, ["journal", *map(str, arguments)])
    return result.exit_code, result.stdout.splitlines(), f"{result.stderr}{result.exception or ''}"


def headers_of(data: Path, kind: RecordType) -> list[RecordHeader]:
    segments = Segments.open(DirectoryStorage.open_for_reading(data), None, SEGMENT_BYTES, writable=False)
    try:
        return [entry.header for entry in Scanner(segments, segments.start) if entry.header.record_type == kind]
    finally:
        segments.close()


def flip(data: Path, lsn: int) -> None:
    with (data / f"{lsn - lsn % SEGMENT_BYTES:020d}.journal").open("r+b") as file:
        file.seek(lsn % SEGMENT_BYTES)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x20]))


def content(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}


def texts(broker: BrokerProcess, offset: int = 0) -> list[bytes]:
    with WireClient(broker.port) as client:
        return [message.payload for _, message in client.read_all("orders", 0, offset)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Killed: ten messages in orders-0, one branch in doubt there, whole on disk, indexes in files."""
    process = BrokerProcess(tmp_path / "broker", None)
    try:
        process.start()
        with WireClient(process.port) as client:
            for number in range(10):
                client.put("orders", 0, b"message %d" % number)
            client.verb(TransactionVerb.BEGIN, IN_DOUBT)
            client.put("orders", 0, b"in doubt", IN_DOUBT)
            client.verb(TransactionVerb.PREPARE, IN_DOUBT)
        assert process.stop() == 0
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("missing", [False, True], ids=["a record", "a segment"])
def test_nothing_is_dropped_from_a_slaves_copy_which_would_count_as_whole(
    broker: BrokerProcess, tmp_path: Path, missing: bool
) -> None:
    copy = tmp_path / "slave"
    shutil.copytree(broker.data, copy)
    SlaveFile(copy).write(SlaveFacts(cluster="metaq", broker_id=0, slave_id=1))
    if missing:
        (copy / f"{SEGMENT_BYTES:020d}.journal").write_bytes(bytes(SEGMENT_BYTES))  # its header, too
    else:
        flip(copy, headers_of(copy, RecordType.PUT)[3].body_lsn)
    before = content(copy)
    status, _, error = run("repair", copy, "--drop", "--yes")
    assert (status, content(copy)) == (2, before), error
    assert "is a slave's copy, and would count as whole without what is dropped" in error
    if not missing:
        assert run("repair", copy, "--from", broker.data, "--drop", "--yes")[0] == 0
        assert copied_bytes(copy) == copied_bytes(broker.data)


def test_what_is_dropped_is_said_and_readers_are_sent_on(broker: BrokerProcess) -> None:
    puts = headers_of(broker.data, RecordType.PUT)
    third, fourth, frame = puts[3], puts[4], puts[3].body_bytes
    for header in (third, fourth):
        flip(broker.data, header.body_lsn)
    before = content(broker.data)

    assert run("check", broker.data)[0] == 1
    status, lines, error = run("repair", broker.data)
    assert (status, content(broker.data)) == (1, before), error
    assert lines[0] == f"drop: LSN {third.lsn} to LSN {fourth.end}"
    assert f"affected: orders-0 from offset {3 * frame} to {5 * frame}: stood there, or was committed there" in lines
    assert lines[-1] == "nothing was changed: name a copy with --from, or say --drop --yes"
    assert run("repair", broker.data, "--yes")[0] == 1
    assert run("repair", broker.data, "--drop")[1][-1] == "nothing was changed: say --yes to do it"
    assert content(broker.data).keys() == before.keys()

    status, lines, error = run("repair", broker.data, "--drop", "--yes", "--json")
    assert status == 0, error
    told = json.loads(lines[0])
    assert (told["done"], told["sound"], told["whole"]) == (True, True, True)
    assert [(each["start"], each["end"]) for each in told["dropped"]] == [(third.lsn, fourth.end)]
    kept = (broker.data / f"before-repair.{third.lsn:020d}-{fourth.end:020d}").read_bytes()
    assert kept == before[f"{0:020d}.journal"][third.lsn : fourth.end]

    broker.start()
    with WireClient(broker.port) as client:
        client.wait_rebuilt("orders", 0)
        first = client.get("orders", 0, 0)
        assert isinstance(first, Value)
        assert len(first.body) == 3 * frame
        for offset in (3 * frame, 3 * frame + 7, 4 * frame):
            for answer in (
                client.get("orders", 0, offset),
                client.ask(Fetch("orders", "g", 0, offset, 1 << 20, 1, 0, client.opaque())),
            ):
                assert isinstance(answer, Result)
                assert (answer.status, answer.message) == (301, b"%d" % (5 * frame))
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, IN_DOUBT)
    assert texts(broker, 5 * frame) == [*(b"message %d" % number for number in range(5, 10)), b"in doubt"]
    assert broker.stop() == 0
    status, lines, _ = run("check", broker.data)
    assert status == 0
    assert lines[-1].startswith("whole: ")
    assert f"dropped by a repair: LSN {third.lsn} to LSN {fourth.end}" in lines


def test_a_branch_in_doubt_that_lost_a_message_is_named_and_gone(broker: BrokerProcess) -> None:
    flip(broker.data, headers_of(broker.data, RecordType.TX_PUT)[0].body_lsn)
    _, lines, _ = run("repair", broker.data)
    assert f"affected: branch {IN_DOUBT}: messages of it stood there; it is dropped whole" in lines
    assert run("repair", broker.data, "--drop", "--yes")[0] == 0
    broker.start()
    with WireClient(broker.port) as client:
        assert client.verb(TransactionVerb.RECOVER, None) == b""
        client.wait_rebuilt("orders", 0)
    assert texts(broker) == [b"message %d" % number for number in range(10)]
    assert broker.stop() == 0


def test_a_copy_gives_back_what_was_lost(broker: BrokerProcess, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(broker.data, backup)
    before = content(broker.data)
    for header in (headers_of(broker.data, RecordType.PUT)[3], headers_of(broker.data, RecordType.TX_PUT)[0]):
        flip(broker.data, header.body_lsn)
    assert run("repair", broker.data, "--from", backup)[1][-1] == "nothing was changed: say --yes to do it"
    status, lines, error = run("repair", broker.data, "--from", backup, "--yes")
    assert (status, lines[-1].split(":")[0]) == (0, "repaired"), error
    assert content(broker.data).items() >= before.items()
    broker.start()
    assert texts(broker) == [b"message %d" % number for number in range(10)]
    assert broker.stop() == 0


def test_a_corrupt_header_and_a_missing_segment(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    with WireClient(broker.port) as client:
        for number in range(10, 20):
            client.put("orders", 0, b"message %d" % number + bytes(1_000_000))
    assert broker.stop() == 0
    backup = tmp_path / "backup"
    shutil.copytree(broker.data, backup)
    before = content(broker.data)
    flip(broker.data, 40)
    (broker.data / f"{SEGMENT_BYTES:020d}.journal").unlink()
    status, lines, _ = run("check", broker.data)
    assert (status, lines[0].split(" ")[0]) == (1, "corrupt")
    status, lines, _ = run("repair", broker.data, "--json")
    assert status == 1
    assert json.loads(lines[0])["segments"] == [
        {"name": f"{0:020d}.journal", "missing": False, "bytes": SEGMENT_BYTES},
        {"name": f"{SEGMENT_BYTES:020d}.journal", "missing": True, "bytes": SEGMENT_BYTES},
    ]
    assert run("repair", broker.data, "--yes")[0] == 1
    assert len(content(broker.data)) == len(before) - 1
    status, lines, error = run("repair", broker.data, "--from", backup, "--yes")
    assert status == 0, error
    assert content(broker.data).items() >= before.items()
    broker.start()
    assert len(texts(broker)) == 20
    assert broker.stop() == 0


def test_what_cannot_be_repaired_is_left_alone(broker: BrokerProcess, tmp_path: Path) -> None:
    flip(broker.data, headers_of(broker.data, RecordType.PUT)[3].body_lsn)
    before = content(broker.data)
    other = tmp_path / "other"
    other.mkdir()
    for arguments, error in (
        (["--from", broker.data], "is the damaged directory itself"),
        (["--from", other], "holds no journal"),
    ):
        status, _, text = run("repair", broker.data, *arguments, "--yes")
        assert (status, content(broker.data)) == (2, before)
        assert error in text


def test_nothing_is_repaired_under_a_running_broker(broker: BrokerProcess) -> None:
    broker.start()
    _, _, text = run("repair", broker.data, "--drop", "--yes")
    assert "is in use by another process" in text
    assert run("repair", broker.data)[1][-1].startswith(f"{broker.data}: nothing to repair: whole")
    assert broker.stop() == 0
