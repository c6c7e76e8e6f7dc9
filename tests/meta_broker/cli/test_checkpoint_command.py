"""`metaq checkpoint` and the verb behind it: on a broker that runs, on several, and on a directory that rests."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from journal.records.xid import XaKey, Xid
from journal.state.checkpoint import checkpoint_numbers, read_newest
from journal.wal.storage import DirectoryStorage
from meta_broker.version import VERSION_TEXT
from meta_client.protocol.answers import CheckpointTaken, format_checkpoint_taken, parse_checkpoint_taken
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import TakeCheckpoint, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

CONFIG = "[topics.orders]\npartitions = 3\n"
ONLY_ASKED_FOR = CONFIG + "[broker]\ncheckpoint_seconds = 3600.0\n"  # none by itself


def metaq(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq("checkpoint", *words)
    assert done.returncode == status, done.stderr
    return done


def taken(*words: str) -> dict[str, Any]:
    (line,) = metaq(*words, "--json").stdout.splitlines()
    row: dict[str, Any] = json.loads(line)
    return row


def newest(data: Path) -> tuple[int, int, int]:
    """Number, LSN and live branches of the newest checkpoint on disk."""
    number, content, damaged = read_newest(DirectoryStorage.open_for_reading(data))
    assert content is not None
    assert not damaged
    return number, content[0].lsn, len(content[0].branches)


def in_doubt(client: WireClient) -> None:
    key = XaKey(Xid.of("g", "b"), "uq")
    client.verb(TransactionVerb.BEGIN, key)
    client.put("orders", 1, b"later", key)
    client.verb(TransactionVerb.PREPARE, key)


def test_a_broker_that_runs(tmp_path: Path, zookeeper: Chroot) -> None:
    with running_broker(tmp_path / "broker", zookeeper.connect, config=ONLY_ASKED_FOR) as broker:
        asked_of(broker, zookeeper)


def asked_of(broker: BrokerProcess, zookeeper: Chroot) -> None:
    with WireClient(broker.port) as client:
        assert " checkpoint" in VERSION_TEXT
        for number in range(20):
            client.put("orders", number % 3, b"x" * 1000)
        in_doubt(client)
        first = taken("--zk", zookeeper.connect)
        assert first["broker"] == "0"
        assert (first["number"], first["lsn"], 1) == newest(broker.data)
        assert first["lsn"] > 20_000
        assert first["bytes_left"] < 200  # what says that the checkpoint exists
        client.put("orders", 0, b"y" * 1000)
        second = taken("--broker", f"meta://127.0.0.1:{broker.port}")
        assert second["number"] == first["number"] + 1
        assert second["lsn"] > first["lsn"]
        client.send(TakeCheckpoint(1), TakeCheckpoint(2))  # one is enough for both
        answers = [answer for answer in (client.receive(), client.receive()) if isinstance(answer, Result)]
        assert [answer.opaque for answer in answers] == [1, 2]
        assert answers[0].message == answers[1].message
    broker.kill()
    broker.start()
    assert f"replayed {broker.log.rpartition('replayed ')[2].split()[0]} bytes, 1 branches in doubt" in broker.log
    assert int(broker.log.rpartition("replayed ")[2].split()[0]) < 200


def test_a_directory_that_rests(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            for number in range(30):
                client.put("orders", number % 3, b"%d" % number)
            in_doubt(client)
            before = [client.read_all("orders", partition) for partition in range(3)]
        assert "in use by another process" in metaq(str(broker.data), status=2).stderr
        broker.kill()
        row = taken(str(broker.data))
        assert row["broker"] == str(broker.data)
        assert (row["number"], row["lsn"], 1) == newest(broker.data)
        seen = len(broker.log)
        broker.start()
        said = broker.log[seen:]
        assert f"replayed {row['bytes_left']} bytes, 1 branches in doubt" in said
        assert "rebuilt" not in said  # the indexes are part of it
        with WireClient(broker.port) as client:
            assert [client.read_all("orders", partition) for partition in range(3)] == before
        assert broker.stop() == 0
    finally:
        broker.kill()
    broker.audit()


def test_what_is_wrong_is_told_in_a_line(tmp_path: Path) -> None:
    assert "holds no journal" in metaq(str(tmp_path), status=2).stderr
    assert list(tmp_path.iterdir()) == []
    assert "not both" in metaq(str(tmp_path), "--broker", "0", status=2).stderr
    assert "error: broker meta://127.0.0.1:1: " in metaq("--broker", "meta://127.0.0.1:1", status=1).stderr


def test_a_checkpoint_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Something stands where the file should be made; the broker goes on, and the next one is written."""
    with (
        running_broker(tmp_path / "broker", None, config=ONLY_ASKED_FOR) as broker,
        WireClient(broker.port) as client,
    ):
        client.put("orders", 0, b"x")
        number = max(checkpoint_numbers(DirectoryStorage.open_for_reading(broker.data)), default=0) + 1
        blocker = broker.data / f"checkpoint.{number}.tmp"
        blocker.mkdir()
        answer = client.result(TakeCheckpoint(1))
        assert answer.status == 500
        assert "no checkpoint was written: " in answer.text
        assert f"checkpoint.{number}: Is a directory" in answer.text
        blocker.rmdir()
        assert parse_checkpoint_taken(client.result(TakeCheckpoint(2)).message).number == number


def test_the_answer_both_ways() -> None:
    assert parse_checkpoint_taken(format_checkpoint_taken(CheckpointTaken(7, 5, 3))) == (7, 5, 3)
    for wrong in (b"", b"1 2", b"1 2 3 4", b"0 2 3", b"1 -2 3", b"1 2 x"):
        with pytest.raises(RemoteProtocolError, match="is not a checkpoint's answer"):
            parse_checkpoint_taken(wrong)
