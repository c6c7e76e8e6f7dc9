"""Topics decided about while a real broker runs: over the wire, through kills and restarts, and in ZooKeeper."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import OFFSET_END, PARTITION_ANY, Fetch, Get, TopicCommand, TopicVerb
from meta_client.protocol.requests import TransactionVerb as Verb
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.topic_commands import done, put, refused
from tests.fixtures.wire import Refused, WireClient
from zk.brokers.cluster import read_topic
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession
from zk.tree.paths import TopicKind

KEY = XaKey(Xid.of("g", "b"), "uq")
FRAME = 20


def test_a_created_topic_takes_messages_and_outlives_a_kill(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        assert put(client, "new", 6).text.endswith("The server do not accept topic new")
        text = "partitions=7 publish=true subscribe=false stat=false compression=none index=none closed="
        assert done(client, TopicVerb.CREATE, "new", partitions="7", subscribe="false") == text
        client.put("new", 6, b"first")
        assert done(client, TopicVerb.CREATE, "new", partitions="7", subscribe="false") == text
        assert refused(client, TopicVerb.CREATE, "new", partitions="8") == (
            400,
            "topic new exists with 7 partitions: use alter, or another name",
        )
    lone_broker.kill()
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        client.put("new", 6, b"second")
        assert [message.payload for _, message in client.read_all("new", 6)] == [b"first", b"second"]
        assert put(client, "new", 7).text.endswith("wrong partition 7")


def test_partitions_grow_and_never_shrink(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        assert put(client, "orders", 4).status == 500
        assert "partitions=6 " in done(client, TopicVerb.ALTER, "orders", partitions="6")
        client.put("orders", 5, b"x")
        assert refused(client, TopicVerb.ALTER, "orders", partitions="5") == (
            400,
            "topic orders has 6 partitions and only grows: close those that must not be used",
        )
        assert "partitions=3 " in done(client, TopicVerb.ALTER, "dynamic-a", partitions="3")  # a pattern's, until now
        assert put(client, "dynamic-b", 2).status == 500


def test_a_closed_partition_is_refused_to_everybody_until_it_is_opened(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as waiting:
        client.put("orders", 1, b"before")
        waiting.send(Fetch("orders", "g", 2, 0, 1000, 1, 30_000, waiting.opaque()))
        assert done(client, TopicVerb.CLOSE, "orders", partitions="1-2").endswith("closed=1-2")
        woken = waiting.receive()
        assert isinstance(woken, Result)
        assert (woken.status, woken.text) == (403, "Partition[0-2] has been closed")
    lone_broker.kill()
    lone_broker.start()  # durable, unlike the ancestor's
    with WireClient(lone_broker.port) as client:
        answer = put(client, "orders", 1)
        assert answer.status == 403
        assert answer.text == (
            f"Put message to [broker '{lone_broker.url}'] [partition 'orders-1'] failed."
            "Detail:partition[0-1] has been closed"
        )
        got = client.get("orders", 1, 0)
        assert isinstance(got, Result)
        assert (got.status, got.text) == (403, "Partition[0-1] has been closed")
        chosen = {client.put("orders", PARTITION_ANY, b"any").partition for _ in range(60)}
        assert chosen == {0, 3}
        client.verb(Verb.BEGIN, KEY)
        with pytest.raises(Refused, match=r"partition\[0-2\] has been closed"):
            client.put("orders", 2, b"tx", KEY)
        assert done(client, TopicVerb.OPEN, "orders", partitions="1").endswith("closed=2")
        client.put("orders", 1, b"after")
        assert done(client, TopicVerb.OPEN, "orders").endswith("closed=")
        client.put("orders", 2, b"after")


def test_a_branch_that_put_before_the_close_commits_after_it(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.verb(Verb.BEGIN, KEY)
        client.put("orders", 0, b"promised", KEY)
        client.verb(Verb.PREPARE, KEY)
        done(client, TopicVerb.CLOSE, "orders", partitions="all")
        client.verb(Verb.COMMIT_TWO_PHASE, KEY)
        done(client, TopicVerb.OPEN, "orders")
        assert [message.payload for _, message in client.read_all("orders", 0)] == [b"promised"]


@pytest.mark.parametrize("restart", [None, BrokerProcess.kill, BrokerProcess.stop])
def test_offsets_of_a_deleted_topic_are_never_used_again(
    lone_broker: BrokerProcess, restart: Callable[[BrokerProcess], object] | None
) -> None:
    def maybe_restart() -> WireClient:
        if restart is not None:
            restart(lone_broker)
            lone_broker.start()
        return WireClient(lone_broker.port)

    with maybe_restart() as client:
        client.put("orders", 0, b"old")
        assert done(client, TopicVerb.DELETE, "orders").startswith("partitions=0 ")
        assert put(client, "orders", 0).text.endswith("The server do not accept topic orders")
        gone = client.get("orders", 0, 0)
        assert isinstance(gone, Result)
        assert (gone.status, gone.text) == (404, "The topic `orders` in partition `0` is not exists")
        assert refused(client, TopicVerb.DELETE, "orders")[0] == 404
    with maybe_restart() as client:
        assert put(client, "orders", 0).status == 500
        assert not any("orders" in line for line in client.stats("topics") + client.stats("offsets"))
        done(client, TopicVerb.CREATE, "orders", partitions="2")
        place = client.put("orders", 0, b"new!")
        assert place.offset == FRAME + 3
        for offset in (0, 5):
            moved = client.get("orders", 0, offset)
            assert isinstance(moved, Result)
            assert (moved.status, moved.text) == (301, str(FRAME + 3))
        end = client.result(Get("orders", "g", 0, OFFSET_END, 10, client.opaque()))
        assert (end.status, end.text) == (301, str(2 * FRAME + 7))
    with maybe_restart() as client:
        assert [(at, m.payload) for at, m in client.read_all("orders", 0, FRAME + 3)] == [(FRAME + 3, b"new!")]


def test_a_topic_with_an_undecided_message_is_not_deleted(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.verb(Verb.BEGIN, KEY)
        client.put("orders", 0, b"promised", KEY)
        client.verb(Verb.PREPARE, KEY)
        status, text = refused(client, TopicVerb.DELETE, "orders")
        assert (status, text) == (
            400,
            f"topic orders stays as it is: {KEY} has messages for it: finish that transaction first",
        )
        client.verb(Verb.COMMIT_TWO_PHASE, KEY)
        assert isinstance(client.get("orders", 0, 0), Value)
        done(client, TopicVerb.DELETE, "orders")


def test_a_setting_is_said_once(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        twice = TopicCommand(TopicVerb.CREATE, "new", (("partitions", "1"), ("partitions", "2")), client.opaque())
        answer = client.result(twice)
        assert (answer.status, answer.text) == (400, "a setting is given twice: say each once")


def test_a_waiting_fetch_is_answered_on_deletion(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as waiting:
        client.put("orders", 0, b"m")
        waiting.send(Fetch("orders", "g", 0, FRAME + 1, 1000, 1, 30_000, waiting.opaque()))
        done(client, TopicVerb.DELETE, "orders")
        answer = waiting.receive()
        assert isinstance(answer, Result)
        assert answer.status == 404


@pytest.mark.parametrize(
    ("verb", "topic", "settings", "status", "why"),
    [
        (TopicVerb.CREATE, "new", {"partitions": "0"}, 400, "use a number from 1 to 65536"),
        (TopicVerb.CREATE, "new", {"partitions": "65537"}, 400, "use a number from 1 to 65536"),
        (TopicVerb.CREATE, "new", {"partitions": "²"}, 400, "use a number from 1 to 65536"),
        (TopicVerb.CREATE, "new", {"publish": "yes"}, 400, "publish=yes: use true or false"),
        (TopicVerb.CREATE, "new", {"color": "red"}, 400, "create knows no setting 'color': use compression, index, p"),
        (
            TopicVerb.CREATE,
            "new",
            {"compression": "gzip"},
            400,
            "compression=gzip: use none, or lz4 or zstd or lz4,zstd",
        ),
        (TopicVerb.ALTER, "orders", {"index": "id"}, 400, "index=id: use none or attribute"),
        (TopicVerb.ALTER, "orders", {"compression": ""}, 400, "compression=: use none, or lz4 or zstd or lz4,zstd"),
        (TopicVerb.SHOW, "nothing", {}, 404, "no topic nothing: create it"),
        (TopicVerb.SHOW, "orders", {"partitions": "1"}, 400, "show knows no setting 'partitions': use none"),
        (TopicVerb.CREATE, "a/b", {}, 400, "cannot be created: a topic name holds no slash"),
        (TopicVerb.CREATE, "x" * 201, {}, 400, "a topic name is 1 to 200 bytes long"),
        (TopicVerb.CREATE, "new-*", {}, 400, "new-* is a pattern: change its section of the configuration file"),
        (TopicVerb.ALTER, "nothing", {"partitions": "2"}, 404, "no topic nothing: create it"),
        (TopicVerb.ALTER, "orders", {}, 400, "nothing to alter: name partitions=N"),
        (TopicVerb.CLOSE, "nothing", {"partitions": "all"}, 404, "no topic nothing"),
        (TopicVerb.CLOSE, "orders", {}, 400, "nothing to close: name partitions=0-3,7"),
        (TopicVerb.CLOSE, "orders", {"partitions": "4"}, 400, "topic orders has partitions 0 to 3"),
        (TopicVerb.CLOSE, "orders", {"partitions": "2-1"}, 400, "topic orders has partitions 0 to 3"),
        (TopicVerb.CLOSE, "orders", {"partitions": "0,"}, 400, "use all, or numbers and ranges"),
        (TopicVerb.CLOSE, "orders", {"partitions": "0-99999999999"}, 400, "use all, or numbers and ranges"),
        (TopicVerb.DELETE, "dynamic-unused", {}, 404, "no topic dynamic-unused"),
        (TopicVerb.DELETE, "orders", {"partitions": "1"}, 400, "delete knows no setting 'partitions': use none"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(
    shared_lone_broker: BrokerProcess, verb: TopicVerb, topic: str, settings: dict[str, str], status: int, why: str
) -> None:
    with WireClient(shared_lone_broker.port) as client:
        before = client.stats("topics")
        answer = refused(client, verb, topic, **settings)
        assert answer[0] == status
        assert why in answer[1]
        assert client.stats("topics") == before


def test_zookeeper_follows(zookeeper: Chroot, tmp_path: Path) -> None:
    patient = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 60000")
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=patient) as broker,
        ZooKeeperSession(zookeeper.connect, "/meta", 60_000) as session,
        WireClient(broker.port) as client,
    ):

        def offered(kind: TopicKind, topic: str) -> int:
            return sum(node.partitions for node in read_topic(session, kind, topic).values())

        def wait_until(kind: TopicKind, topic: str, partitions: int) -> None:
            deadline = time.monotonic() + 60
            while (now := offered(kind, topic)) != partitions:
                assert time.monotonic() < deadline, f"{topic} has {now} partitions, not {partitions}"
                time.sleep(0.02)

        done(client, TopicVerb.CREATE, "new", partitions="5", subscribe="false")
        wait_until(TopicKind.PUB, "new", 5)
        assert offered(TopicKind.SUB, "new") == 0
        done(client, TopicVerb.ALTER, "new", partitions="6", publish="false", subscribe="true")
        wait_until(TopicKind.SUB, "new", 6)
        wait_until(TopicKind.PUB, "new", 0)
        done(client, TopicVerb.DELETE, "new")
        wait_until(TopicKind.SUB, "new", 0)
        done(client, TopicVerb.DELETE, "invoices")
        wait_until(TopicKind.SUB, "invoices", 0)
        client.put("dynamic-a", 0, b"m")
        wait_until(TopicKind.PUB, "dynamic-a", 2)
        done(client, TopicVerb.DELETE, "dynamic-a")
        wait_until(TopicKind.PUB, "dynamic-a", 0)
        done(client, TopicVerb.CREATE, "dynamic-a", partitions="1")
        wait_until(TopicKind.PUB, "dynamic-a", 1)
        broker.kill()
        broker.start()
        assert offered(TopicKind.PUB, "dynamic-a") == 1
        assert offered(TopicKind.SUB, "invoices") == 0
