"""`metaq find`, against a broker and against one that can't search."""

import datetime
import json
import subprocess
import time
from typing import Any

import pytest

from meta_client.cli.find import _search
from meta_client.cli.options import connected
from meta_client.client import Client
from meta_client.errors import NotSupported, ReplyTimeout
from meta_client.operations import progress, searching
from meta_client.operations.searching import Wanted, search_partition
from meta_client.protocol.errors import MetaError
from meta_client.protocol.version import Capabilities
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from zk.embedded.chroot import Chroot
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition


def metaq(zookeeper: Chroot, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq("find", *words, "--zk", zookeeper.connect)
    assert done.returncode == status, done.stderr
    return done


def rows(zookeeper: Chroot, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metaq(zookeeper, *words, "--json").stdout.splitlines()]


def test_by_key_by_id_and_since(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with connected(zookeeper.connect) as client:
        producer = client.producer()
        results = [producer.send("orders", b"%d" % n, f"key-{n % 3}" if n % 4 else None) for n in range(24)]
        time.sleep(0.02)
        between = datetime.datetime.now(datetime.UTC)
        late = [producer.send("orders", bytes([255]) * 50, "key-1") for _ in range(4)]
    found = rows(zookeeper, "orders", "--key", "key-1", "--limit", "100")
    expected = [results[n].message_id for n in range(24) if n % 4 and n % 3 == 1] + [each.message_id for each in late]
    assert sorted(row["message_id"] for row in found) == sorted(expected)
    assert {row["attribute"] for row in found} == {"key-1"}
    assert len(rows(zookeeper, "orders", "--key", "key-1", "--limit", "2")) == 2

    (row,) = rows(zookeeper, "orders", "--id", str(results[7].message_id))
    assert (row["payload"], row["offset"], row["partition"]) == ("7", results[7].offset, str(results[7].partition))
    put_at = datetime.datetime.fromisoformat(row["time"])
    assert abs(put_at - between) < datetime.timedelta(seconds=30)

    since = between.isoformat()
    assert sorted(row["message_id"] for row in rows(zookeeper, "orders", "--since", since)) == sorted(
        each.message_id for each in late
    )
    assert len(rows(zookeeper, "orders", "--since", since, "--key", "key-1", "--limit", "3")) == 3
    metaq(zookeeper, "orders", "--since", since, "--key", "key-2", status=1)

    lines = metaq(zookeeper, "orders", "--id", str(late[0].message_id)).stdout.splitlines()
    assert lines[0].split() == ["partition", "offset", "message_id", "time", "attribute", "payload"]
    assert lines[1].endswith("\N{REPLACEMENT CHARACTER}" * 40 + "...")

    done = metaq(zookeeper, "orders", "--key", "nothing", status=1)
    assert (done.stdout, done.stderr) == ("", "no such message\n")
    assert "nothing to find: give --key, --id or --since" in metaq(zookeeper, "orders", status=2).stderr
    assert "no broker offers this topic" in metaq(zookeeper, "nowhere", "--key", "a", status=2).stderr
    del broker


def test_a_broker_that_can_not_search_is_read(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same broker, taken for a genuine one: what is asked of it then, a genuine one answers, too."""
    url = BrokerUrl.parse(broker.url)
    partition = Partition(0, 0)

    def found(client: Client, wanted: Wanted, limit: int = 9) -> list[int]:
        hits = list(search_partition(client, "meta-test", partition, url, wanted, limit))
        assert all(hit.time_ms is None for hit in hits)  # a genuine broker's ids tell nothing of times
        return [hit.message.offset for hit in hits]

    with connected(zookeeper.connect) as client:
        producer = client.producer()
        results = [producer.send("meta-test", b"%d" % n, "ab"[n % 2]) for n in range(6)]
        connection = client.connections.get(url, 5)
        monkeypatch.setattr(type(connection), "capabilities", lambda self, timeout_s: Capabilities(None))
        monkeypatch.setattr(progress, "TELL_EVERY_S", 0.0)
        assert found(client, Wanted(key="a")) == [each.offset for each in results[::2]]
        assert found(client, Wanted(key="a"), 1) == [0]
        assert found(client, Wanted(message_id=results[3].message_id)) == [results[3].offset]
        assert found(client, Wanted(message_id=results[3].message_id, key="a")) == []
        with pytest.raises(NotSupported, match="without --since"):
            found(client, Wanted(since_ms=0))
    told = capsys.readouterr().err
    assert f"warning: {broker.url} can't search: meta-test/0-0 is read here, message by message" in told
    assert f"searched meta-test/0-0 up to offset {results[5].offset}" in told


def test_what_could_not_be_searched_is_no_proof_of_absence(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with connected(zookeeper.connect) as client:
        client.producer().send("meta-test", b"x", "a")
    run_metaq("topics", "close", "meta-test", "0", "--broker", broker.url, "--zk", zookeeper.connect).check_returncode()
    assert "has been closed" in metaq(zookeeper, "meta-test", "--key", "a", status=2).stderr


def test_a_broker_that_hangs_is_asked_once(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[MetaError] = []
    with connected(zookeeper.connect) as client:
        client.producer().send("orders", b"x", "a")
        client.connections.get(BrokerUrl.parse(broker.url), 5)
        monkeypatch.setattr(searching, "ANSWER_TIMEOUT_S", 0.5)
        broker.pause()
        assert list(_search(client, "orders", Wanted(key="a"), 9, failures)) == []
        broker.resume()
    assert [type(error) for error in failures] == [ReplyTimeout]


def test_a_key_without_a_utf_8_form_is_wrong_and_not_missing(zookeeper: Chroot, broker: BrokerProcess) -> None:
    del broker
    done = metaq(zookeeper, "orders", "--key", "\udcff", status=2)
    assert done.stderr.startswith("error: Invalid value for '--key': '\\udcff' has no UTF-8 form")
