"""The audit log of a directory: what operators did to it while no broker ran."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from journal.records.header import RecordType
from journal.records.xid import XaKey, Xid
from meta_client.cli.main import metaq
from meta_client.logs.audit import OFFLINE_FILE, user_of_this_process
from meta_client.protocol.requests import TransactionVerb
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.wire import WireClient
from tests.meta_broker.cli.test_journal_repair import flip, headers_of

KEYS = [XaKey(Xid.of(name, "offline"), "uq") for name in ("one", "two")]


def run(status: int, *words: object) -> None:
    done = CliRunner().invoke(metaq, list(map(str, words)))
    assert done.exit_code == status, (words, done.output, done.stderr, done.exception)


def lines_of(directory: Path) -> list[str]:
    path = directory / OFFLINE_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    told = [line.split(" INFO metaq.audit audit ") for line in path.read_text().splitlines()]
    assert all(re.fullmatch(r"[\d-]{10} [\d:,]{12}", when) for when, _ in told)
    by = f"principal={user_of_this_process()} conn=local"
    assert all(f" {by}" in what for _, what in told)
    return [what.replace(f" {by}", "") for _, what in told]


def with_two_in_doubt(broker: BrokerProcess) -> Path:
    with WireClient(broker.port) as client:
        for number in range(3):
            client.put("orders", 0, b"message %d" % number)
        for key in KEYS:
            client.verb(TransactionVerb.BEGIN, key)
            client.put("orders", 1, b"m", key)
            client.verb(TransactionVerb.PREPARE, key)
    assert broker.stop() == 0
    return broker.data


def test_what_is_done_offline_is_in_the_directorys_own_log(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        data = with_two_in_doubt(broker)
    of, by = ("--dir", data), ("--who", "ann", "--why", 'its "order"\nis there', "--yes")
    run(0, "txn", "commit", KEYS[0], *of, *by)
    run(0, "txn", "rollback", KEYS[1], *of, *by)
    run(1, "txn", "commit", KEYS[1], *of, *by)  # it has ended: nothing was done
    run(0, "txn", "forget", KEYS[1], *of, "--yes")
    run(0, "txn", "list", *of)
    run(0, "checkpoint", data)
    run(0, "backup", data, tmp_path / "backup")
    run(0, "restore", tmp_path / "backup", tmp_path / "restored", "--accept-loss", "--yes")
    assert lines_of(data) == [
        rf'action=branch-commit outcome=done key={KEYS[0]} who=ann why="its \"order\"\nis there"',
        rf'action=branch-rollback outcome=done key={KEYS[1]} who=ann why="its \"order\"\nis there"',
        f"action=branch-forget outcome=done key={KEYS[1]}",
        "action=checkpoint outcome=done",
    ]
    assert not (tmp_path / "backup" / OFFLINE_FILE).exists()
    assert lines_of(tmp_path / "restored") == [
        f"action=restore outcome=done backup={tmp_path / 'backup'} broker=0 epoch=2"
    ]


def test_a_repair_is_there_with_what_it_dropped(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        data = with_two_in_doubt(broker)
    damaged = headers_of(data, RecordType.PUT)[1]
    flip(data, damaged.body_lsn)
    run(1, "journal", "repair", data, "--drop")  # shown, not done
    assert not (data / OFFLINE_FILE).exists()
    run(0, "journal", "repair", data, "--drop", "--yes")
    [line] = lines_of(data)
    assert re.fullmatch(rf"action=journal-repair outcome=done dropped={damaged.lsn}-\d+", line)


def test_a_log_that_cannot_be_written_is_said_and_undoes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        data = with_two_in_doubt(broker)
    (data / OFFLINE_FILE).mkdir()
    done = CliRunner().invoke(metaq, ["checkpoint", str(data)])
    assert done.exit_code == 0, done.output
    assert "not in the audit log action=checkpoint" in caplog.text
