"""`metaq offsets`: where partitions begin and end, and what belongs to a time."""

import datetime
import json
import subprocess
import time
from typing import Any

from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

FRAME = 25  # bytes of a message of five


def metaq(zookeeper: Chroot, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq("offsets", *words, "--zk", zookeeper.connect)
    assert done.returncode == status, done.stderr
    return done


def rows(zookeeper: Chroot, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metaq(zookeeper, *words, "--json").stdout.splitlines()]


def put(client: WireClient, count: int) -> datetime.datetime:
    """Put messages to orders/0; a moment after which nothing was put yet."""
    for _ in range(count):
        client.put("orders", 0, b"hello")
    time.sleep(0.02)
    return datetime.datetime.now(datetime.UTC)


def test_offsets_and_times(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        before = datetime.datetime.now(datetime.UTC)
        between = put(client, 3)
        after = put(client, 2)
    first, second = rows(zookeeper, "orders")[:2]
    assert first == {"partition": "0-0", "start": 0, "end": 5 * FRAME}
    assert second == {"partition": "0-1", "start": 0, "end": 0}
    for moment, offset in ((before, 0), (between, 3 * FRAME), (after, 5 * FRAME)):
        told = rows(zookeeper, "orders", "--at", moment.isoformat())
        assert [row["at"] for row in told[:2]] == [offset, 0]
    naive = between.astimezone().replace(tzinfo=None).isoformat()
    assert rows(zookeeper, "orders", "--at", naive)[0]["at"] == 3 * FRAME
    broker.kill()
    broker.start()
    assert rows(zookeeper, "orders", "--at", between.isoformat())[0]["at"] == 3 * FRAME
    assert metaq(zookeeper, "orders").stdout.splitlines()[0].split() == ["partition", "start", "end"]


def test_what_is_wrong_is_told_in_a_line(zookeeper: Chroot, broker: BrokerProcess) -> None:
    assert (
        "yesterday is no time: write it like 2010-12-05T10:00,"
        in metaq(zookeeper, "orders", "--at", "yesterday", status=2).stderr
    )
    assert metaq(zookeeper, "nothing", status=1).stderr.startswith("error: no broker offers topic nothing")
    del broker
