"""The configuration file read again: what follows it, what does not, and what an invalid one says."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_broker.cluster.topic_announcer import reload
from meta_broker.config.broker_config import TopicConfig
from meta_broker.config.loading import load
from meta_client.protocol.requests import Get, TopicVerb, TransactionVerb
from meta_client.protocol.responses import Value
from tests.fixtures.broker import CONFIG, SHARED, BrokerProcess
from tests.fixtures.topic_commands import done, put
from tests.fixtures.wire import WireClient


class Reloading:
    """A broker whose file is rewritten and read again."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.file = broker.data.parent / f"{broker.data.name}.toml"

    def reload(self, text: str, *, says: str = "reloaded") -> str:
        """Write the file, send SIGHUP; returns the line of log that tells what came of it."""
        before = len(self.broker.log)
        self.file.write_text(text)
        self.broker.hang_up()
        deadline = time.monotonic() + 60
        while not (lines := [line for line in self.broker.log[before:].splitlines() if says in line]):
            assert time.monotonic() < deadline, self.broker.log[before:]
            time.sleep(0.02)
        return lines[0]


def test_a_reload_follows_the_file(lone_broker: BrokerProcess) -> None:
    reloading = Reloading(lone_broker)
    with WireClient(lone_broker.port) as client:
        client.put("meta-test", 0, b"kept")
        config = CONFIG.replace("[topics.orders]\npartitions = 4", "[topics.orders]\npartitions = 6")
        config = config.replace("[topics.meta-test]\npartitions = 1\n", "[topics.added]\n")
        line = reloading.reload(config)
        assert line.endswith("changed=added,meta-test,orders")
        client.put("orders", 5, b"m")
        client.put("added", 0, b"m")
        assert put(client, "meta-test", 0).status == 500
        assert [message.payload for _, message in client.read_all("meta-test", 0)] == [b"kept"]
        answer = client.ask(Get("orders", "g", 5, 0, 1000, client.opaque()))
        assert isinstance(answer, Value)


def checksum_line(client: WireClient) -> str:
    return next(line for line in client.stats() if line.startswith("config_checksum"))


def test_an_invalid_file_changes_nothing_and_says_why(lone_broker: BrokerProcess) -> None:
    reloading = Reloading(lone_broker)
    with WireClient(lone_broker.port) as client:
        before = client.stats("topics"), checksum_line(client)
        line = reloading.reload("[topics.orders]\npartitons = 6\n", says="not reloaded")
        assert line.endswith(
            f'not reloaded, everything stays as it was error="{reloading.file}: unknown key topics.orders.partitons: '
            "did you mean 'partitions'?\""
        )
        assert (client.stats("topics"), checksum_line(client)) == before


@pytest.mark.parametrize(
    "section",
    [
        '[access]\nfile = "a\\u0000b"',
        '[tls]\ncertificate = "c.pem"\nca = "a\\u0000b"',
        '[admin]\ntoken_file = "\\u0000"',
    ],
)
def test_a_name_that_no_file_can_have_ends_no_broker(section: str, shared_lone_broker: BrokerProcess) -> None:
    line = Reloading(shared_lone_broker).reload(f"{SHARED}\n{section}\n", says="not reloaded, everything stays")
    assert "holds a zero byte" in line
    with WireClient(shared_lone_broker.port) as client:
        client.put("meta-test", 0, b"m")


def test_a_file_that_hangs_holds_up_nothing_else(lone_broker: BrokerProcess) -> None:
    """Time branches and connections out, and stop when told, as on a file system that does not answer."""
    key = XaKey(Xid.of("order", "b"), "uq")
    lone_broker.config_path.unlink()
    os.mkfifo(lone_broker.config_path)
    lone_broker.hang_up()
    with WireClient(lone_broker.port) as client:
        client.verb(TransactionVerb.BEGIN, key, timeout_seconds=1)
        deadline = time.monotonic() + 30
        while client.verb(TransactionVerb.STATUS, key) != b"unknown":
            assert time.monotonic() < deadline, "the branch does not time out"
            time.sleep(0.1)
    assert lone_broker.stop() == 0
    assert "reloaded" not in lone_broker.log


def test_a_decision_holds_until_the_topics_own_section_changes(lone_broker: BrokerProcess) -> None:
    reloading = Reloading(lone_broker)
    with WireClient(lone_broker.port) as client:
        done(client, TopicVerb.ALTER, "orders", partitions="8")
        done(client, TopicVerb.CLOSE, "orders", partitions="0")
        done(client, TopicVerb.CREATE, "new", partitions="2")
        done(client, TopicVerb.DELETE, "invoices")
        reloading.reload(CONFIG + "\n[topics.other]\n")
        client.put("orders", 7, b"the file said 4 then as now")
        client.put("new", 1, b"m")
        assert put(client, "invoices", 0).status == 500
        changed = CONFIG.replace("partitions = 4", "partitions = 5") + "\n[topics.new]\n"
        reloading.reload(changed)
        client.put("orders", 4, b"m")
        assert put(client, "orders", 5).status == 500
        assert put(client, "orders", 0).status == 403  # no file opens what an operator closed
        assert put(client, "new", 1).status == 500
    lone_broker.kill()
    reloading.file.write_text(changed.replace("[topics.invoices]\npartitions = 2", "[topics.invoices]\npartitions = 3"))
    lone_broker.start()  # a restart reads the file as a reload does
    with WireClient(lone_broker.port) as client:
        client.put("invoices", 2, b"m")
        assert put(client, "orders", 5).status == 500
        assert put(client, "orders", 0).status == 403


def test_the_same_file_again_changes_nothing(lone_broker: BrokerProcess) -> None:
    assert Reloading(lone_broker).reload(CONFIG).endswith("topics=4 changed=none")


def test_without_a_file_there_is_nothing_to_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert reload(load(None, data=tmp_path, broker_id=0, port=0)) is None
    assert caplog.messages == ["not reloaded: this broker was started without --config"]


def test_only_topics_are_reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[topics.a]\n")
    config = load(path, data=tmp_path, broker_id=0, port=0)
    path.write_text("[broker]\ntransactions_max = 1\n[topics.b]\nstat = true\n")
    fresh = reload(config)
    assert fresh == dataclasses.replace(config, topics={"b": TopicConfig(stat=True)}, source=path.read_bytes())
    assert caplog.messages == [
        "only topics, filters, TLS, access and quotas are reloaded: restart the broker for what changed in "
        "[broker] and [zookeeper]"
    ]
