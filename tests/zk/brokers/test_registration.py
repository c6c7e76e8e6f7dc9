"""Broker registration: the specification's snapshot, duplicates, crashes, expiry, clean goodbyes (V09)."""

import threading
import time
from collections.abc import Callable

import pytest

from zk.brokers.registration import BrokerIdTaken, BrokerRegistration, TopicRegistration
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session import ephemerals
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName
from zk.tree.paths import InvalidName

MASTER_URL = BrokerUrl("10.0.0.9", 8123)
SLAVE_URL = BrokerUrl("10.0.0.10", 8123)
TOPICS = {"meta-test": TopicRegistration(2)}

OF_MASTER = {  # spec C.5; True: ephemeral
    "/meta/brokers/ids/0": (b"meta://10.0.0.9:8123", False),
    "/meta/brokers/ids/0/master": (b"meta://10.0.0.9:8123", True),
    "/meta/brokers/ids/0/master_config_checksum": (b"2774833613", True),
    "/meta/brokers/topics/meta-test/0-m": (b"2", True),
    "/meta/brokers/topics-pub/meta-test/0-m": (b'{"numParts":2,"broker":"0-m"}', True),
    "/meta/brokers/topics-sub/meta-test/0-m": (b'{"numParts":2,"broker":"0-m"}', True),
}
OF_SLAVE = {
    "/meta/brokers/ids/0/slave1": (b"meta://10.0.0.10:8123", True),
    "/meta/brokers/topics/meta-test/0-s1": (b"2", True),
    "/meta/brokers/topics-pub/meta-test/0-s1": (b'{"numParts":2,"broker":"0-s1"}', True),
    "/meta/brokers/topics-sub/meta-test/0-s1": (b'{"numParts":2,"broker":"0-s1"}', True),
}


def master(session: ZooKeeperSession, url: BrokerUrl = MASTER_URL) -> BrokerRegistration:
    return BrokerRegistration(session, BrokerName(0), url, config_checksum=2774833613, topics=TOPICS)


def slave(session: ZooKeeperSession) -> BrokerRegistration:
    return BrokerRegistration(session, BrokerName(0, 1), SLAVE_URL, topics=TOPICS)


def snapshot(session: ZooKeeperSession, path: str = "/meta/brokers") -> dict[str, tuple[bytes, bool]]:
    """Every node that holds data or is ephemeral."""
    found: dict[str, tuple[bytes, bool]] = {}
    for child in session.children(path):
        found |= snapshot(session, f"{path}/{child}")
    node = session.read(path)
    if node is not None and (node.data or node.session_id):
        found[path] = (node.data, node.session_id != 0)
    return found


def test_master_and_slave_leave_the_specified_snapshot(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    master(session).register()
    slave(open_session()).register()
    assert snapshot(session) == OF_MASTER | OF_SLAVE


def test_registering_twice_changes_nothing(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    before = session.read("/meta/brokers/ids/0/master")
    registration.register()
    assert session.read("/meta/brokers/ids/0/master") == before
    assert snapshot(session) == OF_MASTER


def test_a_clean_stop_of_the_master_leaves_the_slave_and_vice_versa(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    one, other = master(session), slave(open_session())
    one.register()
    other.register()
    one.unregister()
    assert snapshot(session) == OF_SLAVE
    one.register()
    other.unregister()
    assert snapshot(session) == OF_MASTER
    one.unregister()
    assert snapshot(session) == {}
    assert session.read("/meta/brokers/ids/0") is None


def test_a_second_broker_of_the_same_id_is_refused(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    master(session).register()
    second = master(open_session(session_timeout_ms=60_000), BrokerUrl("10.0.0.11", 8123))
    monkeypatch.setattr(ephemerals, "EXPIRY_SLACK_S", -56.0)  # a session that can't expire, and no minute's wait for it
    told: list[str] = []
    with pytest.raises(BrokerIdTaken) as refusal:
        second.register(progress=told.append)
    assert told == [
        "/meta/brokers/ids/0/master is still registered by 'meta://10.0.0.9:8123': "
        "waiting up to 4 s for its ZooKeeper session to end"
    ]
    assert refusal.value.holder_url == "meta://10.0.0.9:8123"
    assert str(refusal.value).startswith(
        "broker id 0 is registered by 'meta://10.0.0.9:8123' at /meta/brokers/ids/0/master (session 0x"
    )
    second.unregister()
    assert snapshot(session) == OF_MASTER


def test_waiting_for_a_held_id_can_be_cancelled(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    master(session).register()
    second = master(open_session(session_timeout_ms=60_000))
    started = time.monotonic()
    with pytest.raises(BrokerIdTaken):
        second.register(progress=lambda text: second.cancel())
    assert time.monotonic() - started < 40  # and not the minute of its session


def test_a_crashed_brokers_id_is_waited_for(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    crashed = open_session()
    master(crashed).register()
    again = master(session)
    waiting = threading.Event()
    thread = threading.Thread(target=again.register, args=[lambda text: waiting.set()])
    thread.start()
    assert waiting.wait(60)
    crashed.close()  # as its expiry would
    thread.join(60)
    assert not thread.is_alive()
    node = session.read("/meta/brokers/ids/0/master")
    assert node is not None
    assert node.session_id == session.session_id
    assert snapshot(session) == OF_MASTER


def test_everything_comes_back_after_expiry(
    session: ZooKeeperSession, expire: Callable[[ZooKeeperSession], None]
) -> None:
    registration = master(session)
    registration.register()
    assert registration.write_topics({"later": TopicRegistration(1)}) == {}
    before = snapshot(session)
    expire(session)
    assert snapshot(session) == {"/meta/brokers/ids/0": (b"meta://10.0.0.9:8123", False)}
    registration.register()
    assert snapshot(session) == before
    assert "/meta/brokers/topics-pub/later/0-m" in before


def test_topics_follow_what_the_broker_accepts(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    assert registration.write_topics({"meta-test": TopicRegistration(5, accept_publish=False)}) == {}
    assert session.children("/meta/brokers/topics-pub/meta-test") == []
    node = session.read("/meta/brokers/topics-sub/meta-test/0-m")
    assert node is not None
    assert node.data == b'{"numParts":5,"broker":"0-m"}'
    assert node.version == 0  # created again: peers watch children
    assert registration.write_topics({"meta-test": TopicRegistration(5, accept_subscribe=False)}) == {}
    assert session.children("/meta/brokers/topics-pub/meta-test") == ["0-m"]
    assert session.children("/meta/brokers/topics-sub/meta-test") == []
    assert registration.write_topics({"meta-test": None}) == {}
    assert session.children("/meta/brokers/topics-pub/meta-test") == []
    assert session.children("/meta/brokers/topics/meta-test") == []


def test_the_checksum_is_updated_in_place(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    registration.set_config_checksum(7)
    node = session.read("/meta/brokers/ids/0/master_config_checksum")
    assert node is not None
    assert (node.data, node.version, node.session_id) == (b"7", 1, session.session_id)


def test_topic_nodes_of_a_former_process_are_replaced(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    former = open_session()
    former.create("/meta/brokers/topics-pub/meta-test/0-m", b'{"numParts":9,"broker":"0-m"}', ephemeral=True)
    master(session).register()
    former.close()
    assert snapshot(session) == OF_MASTER


def test_a_changed_topic_is_never_without_its_node(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    """A Java producer that reads in between would have nowhere to send; a rebalance of a Java member would fail."""
    registration, folder, stop = master(session), "/meta/brokers/topics-pub/meta-test", threading.Event()
    registration.register()
    peer, seen = open_session(), set[tuple[str, ...]]()

    def watch() -> None:
        while not stop.is_set():
            seen.add(tuple(peer.children(folder)))

    thread = threading.Thread(target=watch)
    thread.start()
    for partitions in range(3, 203):
        assert registration.write_topics({"meta-test": TopicRegistration(partitions)}) == {}
    stop.set()
    thread.join()
    assert seen == {("0-m",)}
    node = session.read(f"{folder}/0-m")
    assert node is not None
    assert (node.data, node.session_id) == (b'{"numParts":202,"broker":"0-m"}', session.session_id)
    assert node.version == 0  # another node: peers watch children, not data


def test_many_topics_are_written_whatever_stands_there(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    former = open_session()
    registration = BrokerRegistration(session, BrokerName(0), MASTER_URL)
    registration.register_broker()
    topics: dict[str, TopicRegistration | None] = {f"t{number}": TopicRegistration(1) for number in range(40)}
    session.create("/meta/brokers/topics/t3/9-m", b"1")  # somebody else's: some folders are there
    former.create("/meta/brokers/topics-sub/t20/0-m", b"of a former life", ephemeral=True)
    former.create("/meta/brokers/topics-pub/t21/0-m", b"of a former life", ephemeral=True)
    topics["t21"] = TopicRegistration(1, accept_publish=False)
    session.create("/meta/brokers/topics-pub/t22", ephemeral=True)  # nobody can have a node below it
    topics["a/b"] = TopicRegistration(1)
    failed = registration.write_topics(topics)
    assert failed.keys() == {"t22", "a/b"}
    assert "/meta/brokers/topics-pub/t22/0-m" in str(failed["t22"])
    for number in range(40):
        assert session.children(f"/meta/brokers/topics-sub/t{number}") == ["0-m"] * (number != 22)
        assert session.children(f"/meta/brokers/topics-pub/t{number}") == ["0-m"] * (number not in (21, 22))
    session.delete("/meta/brokers/topics-pub/t22")
    assert registration.write_topics({"t22": TopicRegistration(1), "t5": None}) == {}
    assert session.children("/meta/brokers/topics-pub/t22") == ["0-m"]
    assert session.children("/meta/brokers/topics-pub/t5") == []
    former.close()
    assert registration.write_topics(topics).keys() == {"a/b"}  # a second time changes nothing
    session.delete("/meta/brokers/topics/t3/9-m")
    registration.unregister()
    assert snapshot(session) == {}


def test_a_node_that_cannot_be_replaced_is_an_error(session: ZooKeeperSession) -> None:
    session.create("/meta/brokers/topics/meta-test/0-m/somebodys", b"x")
    registration = master(session)
    with pytest.raises(ZooKeeperError, match="/meta/brokers/topics/meta-test/0-m in ZooKeeper can't be replaced"):
        registration.register()


def test_a_session_can_begin_again(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    epoch, session_id = session.epoch, session.session_id
    session.close()
    assert not session.is_connected
    with pytest.raises(ZooKeeperUnavailable):
        registration.register_broker()
    session.start()
    assert session.is_connected
    assert session.epoch == epoch + 1
    assert session.session_id != session_id
    assert snapshot(session) == {"/meta/brokers/ids/0": (b"meta://10.0.0.9:8123", False)}
    registration.register()
    assert snapshot(session) == OF_MASTER


def test_a_topic_that_can_be_none_is_refused(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    assert isinstance(registration.write_topics({"a/b": TopicRegistration(1)})["a/b"], InvalidName)


def test_a_checksum_is_published_again_where_its_node_is_gone(session: ZooKeeperSession) -> None:
    registration = master(session)
    registration.register()
    session.delete("/meta/brokers/ids/0/master_config_checksum")
    registration.set_config_checksum(7)
    node = session.read("/meta/brokers/ids/0/master_config_checksum")
    assert node is not None
    assert (node.data, node.session_id) == (b"7", session.session_id)
