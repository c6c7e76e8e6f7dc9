"""`metaq topics` and its commands: told to every master, or to the ones named; refused in one line."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import Refused, WireClient
from zk.embedded.chroot import Chroot

SWITCHES = {"publish": True, "subscribe": True, "stat": False}
ORDERS_OF_8 = {"topic": "orders", "partitions": 8, **SWITCHES, "compression": "none", "index": "none", "closed": None}


def metaq(zookeeper: Chroot, *words: str, status: int = 0, typed: str = "") -> subprocess.CompletedProcess[str]:
    done = run_metaq("topics", *words, "--zk", zookeeper.connect, stdin=typed)
    assert done.returncode == status, done.stderr
    return done


def rows(zookeeper: Chroot, *words: str, status: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metaq(zookeeper, *words, "--json", status=status).stdout.splitlines()]


def test_the_life_of_a_topic(zookeeper: Chroot, broker: BrokerProcess) -> None:
    made = {**ORDERS_OF_8, "topic": "new", "broker": "0"}
    assert rows(zookeeper, "create", "new", "--partitions", "8") == [made]
    assert rows(zookeeper, "alter", "new", "--partitions", "9", "--no-publish", "--stat") == [
        {**made, "partitions": 9, "publish": False, "stat": True}
    ]
    assert rows(zookeeper, "alter", "new", "--compression", "zstd,lz4")[0]["compression"] == "lz4,zstd"
    assert rows(zookeeper, "show", "new")[0]["compression"] == "lz4,zstd"
    assert rows(zookeeper, "alter", "new", "--compression", "none")[0]["compression"] == "none"
    assert rows(zookeeper, "close", "new", "0-3,7")[0]["closed"] == "0-3,7"
    assert rows(zookeeper, "open", "new", "1")[0]["closed"] == "0,2-3,7"
    assert rows(zookeeper, "open", "new")[0]["closed"] is None
    wait_for(zookeeper, "new", [{"broker": "0-m", "partitions": 9, "publish": False, "subscribe": True}])
    assert metaq(zookeeper, "delete", "new", typed="y\n").stderr == (
        "delete topic new and all its messages on every broker? [y/N]: "
    )
    wait_for(zookeeper, "new", [{"broker": None, "partitions": 0, "publish": False, "subscribe": False}])
    with WireClient(broker.port) as client, pytest.raises(Refused, match="do not accept topic new"):
        client.put("new", 0, b"m")


def wait_for(zookeeper: Chroot, topic: str, wanted: list[dict[str, Any]]) -> None:
    """Wait until the listing shows *wanted* for *topic*: ZooKeeper is updated a moment after the answer."""
    deadline = time.monotonic() + 60
    expected = [{"topic": topic, **row} for row in wanted]
    while (listed := [row for row in rows(zookeeper) if row["topic"] == topic]) != expected:
        assert time.monotonic() < deadline, listed


def test_a_deletion_that_is_not_confirmed_deletes_nothing(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        client.put("orders", 0, b"m")
        assert "nothing was changed" in metaq(zookeeper, "delete", "orders", status=1, typed="n\n").stderr
        unanswered = metaq(zookeeper, "delete", "orders", status=130, typed="").stderr
        assert "nothing was changed: the question had no answer; --yes skips it" in unanswered
        assert len(client.read_all("orders", 0)) == 1


def test_every_master_is_told_or_the_ones_named(zookeeper: Chroot, broker: BrokerProcess, tmp_path: Path) -> None:
    with running_broker(tmp_path / "second", zookeeper.connect, broker_id=1) as second:
        assert [row["broker"] for row in rows(zookeeper, "create", "both", "--partitions", "2")] == ["0", "1"]
        assert [row["broker"] for row in rows(zookeeper, "close", "both", "0", "--broker", "1")] == ["1"]
        assert [row["broker"] for row in rows(zookeeper, "close", "both", "1", "--broker", second.url)] == [second.url]
        with WireClient(broker.port) as client:
            client.put("both", 0, b"m")
        with WireClient(second.port) as client, pytest.raises(Refused, match=r"partition\[1-0\] has been closed"):
            client.put("both", 0, b"m")
        # What one broker refuses is named, and the other has done it all the same.
        rows(zookeeper, "delete", "both", "--yes", "--broker", "0")
        done = metaq(zookeeper, "alter", "both", "--partitions", "4", status=1)
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: broker 0: alter both at meta://127.0.0.1:")
        assert "no topic both: create it" in done.stderr
        assert [line.split()[1:3] for line in done.stdout.splitlines()[1:]] == [["1", "4"]]


def test_a_broker_without_zookeeper_is_told_by_its_url(lone_broker: BrokerProcess) -> None:
    words = ["topics", "create", "new", "--broker", lone_broker.url, "--zk", "127.0.0.1:1", "--json"]
    done = run_metaq(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["partitions"] == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["create", "new"], 1, ""),
        (["create", "new", "--broker", "7"], 2, "no master of broker id 7 is up; none is"),
        (["create", "new", "--broker", "http://a:1"], 2, "is not meta://<host>:<port>"),
        (["create", "new", "--broker", "meta://127.0.0.1:1"], 1, "is the broker up and its port reachable?"),
        (["close", "new"], 2, "Missing argument 'PARTITIONS'"),
    ],
)
def test_nobody_to_tell(zookeeper: Chroot, words: list[str], status: int, said: str) -> None:
    done = metaq(zookeeper, *words, status=status)
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)
    assert done.stdout == ("" if said else "no broker is up: start one, or name its URL with --broker\n")
