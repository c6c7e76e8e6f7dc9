"""Root at work on a directory of another user, who could not read what root writes there."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import TransactionVerb
from tests.fixtures.broker import running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient

NOBODY = 65534  # on every Linux
KEY = XaKey(Xid.of("order", "b"), "uq")
COMMANDS = (
    ("broker", "--id", "0", "--port", "0", "--data"),
    ("checkpoint",),
    ("journal", "repair", "--drop", "--yes"),
    ("txn", "commit", KEY, "--yes", "--who", "ann", "--why", "tried", "--dir"),
    ("promote", "--no-start", "--yes", "--accept-loss"),
)


def content(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_uid, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="others are kept out by the permissions: run as root")
def test_root_leaves_nothing_in_the_directory_of_another_user(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.BEGIN, KEY)
            client.put("orders", 1, b"m", KEY)
            client.verb(TransactionVerb.PREPARE, KEY)
        assert broker.stop() == 0
    for path in (broker.data, *broker.data.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    before = content(broker.data)
    for command in COMMANDS[:-1]:
        assert_refused(command, broker.data, f"{broker.data} belongs to the user ")
    (broker.data / "slave.json").write_text('{"cluster": "metaq", "broker_id": 0, "slave_id": 1, "epoch": 1}')
    os.chown(broker.data / "slave.json", NOBODY, NOBODY)
    before |= {"slave.json": content(broker.data)["slave.json"]}
    assert_refused(COMMANDS[-1], broker.data, "belongs to the user ")
    assert content(broker.data) == before
    assert run_metaq("journal", "check", str(broker.data)).returncode == 0, "to look is not to touch"


def assert_refused(command: Sequence[object], directory: Path, text: str) -> None:
    done = run_metaq(*map(str, command), str(directory))
    assert done.returncode == 2, (command, done.stdout, done.stderr)
    assert text in done.stderr, command
    assert "run this as that user, e.g. with `sudo -u '" in done.stderr
    assert "Traceback" not in done.stderr, command
