"""Consumers of one group that come, go, die, and lose ZooKeeper: every partition has one reader, nothing is lost."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.batch import Batch
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Data, Result
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.expiry import expire_session
from tests.fixtures.wire import WireClient
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.groups.listing import list_group
from zk.groups.membership import ConsumerIdTaken
from zk.tree.nodes import Partition, TopicPartition

ALL = [("wide", Partition(0, number)) for number in range(8)]
QUICK = ConsumerConfig(backoff_s_max=0.2, commit_period_s=0.2)


def join(client: Client, inbox: Inbox, config: ConsumerConfig = QUICK) -> Consumer:
    consumer = client.consumer("group", config=config)
    consumer.subscribe("wide", inbox)
    consumer.start()
    return consumer


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.owned()) for consumer in consumers]


def owners(client: Client) -> dict[TopicPartition, str | None]:
    return {(p.topic, p.partition): p.owner for p in list_group(client.session, "group").progress}


def settled(client: Client, *consumers: Consumer) -> Callable[[], bool]:
    """Return whether these consumers alone own everything, evenly, by ZooKeeper too."""

    def check() -> bool:
        owned = {key: consumer.consumer_id for consumer in consumers for key in consumer.owned()}
        known = {key: owner for key, owner in owners(client).items() if owner is not None}
        even = max(shares(*consumers)) - min(shares(*consumers)) <= 1
        return sorted(owned) == ALL and known == owned and even

    return check


def test_one_two_three_and_back_to_two(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    inbox, sender = Inbox(), open_client()
    producer = sender.producer()
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.send("wide", b"%d" % sent)
            sent += 1

    send(50)
    one = join(open_client(), inbox)
    assert shares(one) == [8]
    send(50)
    two = join(open_client(), inbox)
    wait_until(settled(sender, one, two))
    send(50)
    three = join(open_client(), inbox)
    wait_until(settled(sender, one, two, three))
    assert sorted(shares(one, two, three)) == [2, 3, 3]
    send(50)
    two.close()
    assert two.owned() == []
    wait_until(settled(sender, one, three))
    send(50)
    wait_until(lambda: len(inbox.payloads) == sent)
    assert max(inbox.payloads.values()) == 1  # in calm weather nothing is delivered twice
    assert inbox.overlaps == 0
    del wide_broker


def test_what_stays_is_not_interrupted(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    inbox, sender = Inbox(), open_client()
    one = join(open_client(), inbox)
    staying = Partition(0, 0) if one.consumer_id < "group_zzz" else Partition(0, 7)
    release, entered = threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        if batch.partition == staying:
            entered.set()
            assert release.wait(60)

    inbox.before = hold
    sender.producer().send("wide", b"slow", partition=staying)
    assert entered.wait(60)
    two = join(open_client(), inbox, ConsumerConfig(consumer_id="zzz", backoff_s_max=0.2))
    wait_until(lambda: shares(one, two) == [4, 4])  # while the listener of a partition that stays is still at work
    assert not release.is_set()
    release.set()
    wait_until(settled(sender, one, two))
    wait_until(lambda: len(inbox.messages) == 1)
    del wide_broker


def test_a_partition_moves_only_when_its_listener_has_returned(
    wide_broker: BrokerProcess, open_client: OpenClient
) -> None:
    inbox, sender = Inbox(), open_client()
    one = join(open_client(), inbox)
    moving = Partition(0, 7)
    release, entered = threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        if batch.partition == moving:
            entered.set()
            assert release.wait(60)

    inbox.before = hold
    sender.producer().send("wide", b"slow", partition=moving)
    assert entered.wait(60)
    two = join(open_client(), inbox, ConsumerConfig(consumer_id="zzz", backoff_s_max=0.2))
    time.sleep(0.5)
    assert ("wide", moving) not in two.owned()
    assert owners(sender)["wide", moving] == one.consumer_id
    release.set()
    wait_until(settled(sender, one, two))
    time.sleep(0.5)
    assert inbox.payloads == {b"slow": 1}  # its offset was stored before it moved
    del wide_broker


def test_close_leaves_nothing_behind(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    client = open_client()
    consumer = join(client, Inbox())
    assert set(owners(client).values()) == {consumer.consumer_id}
    consumer.close()
    listing = list_group(client.session, "group")
    assert listing.members == {}
    assert {progress.owner for progress in listing.progress} <= {None}
    del wide_broker


def test_a_dead_consumer_is_replaced_when_its_session_ends(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    inbox, dead_inbox, sender = Inbox(), Inbox(), open_client()
    victim_client = open_client()
    victim = join(victim_client, dead_inbox)
    survivor = join(open_client(), inbox)
    wait_until(settled(sender, victim, survivor))
    # Without a word to anybody: no offset is stored, no owner node deleted, the session just ends.
    victim_client.consumer_connections.close()
    victim_client.session.close()
    for number in range(40):
        sender.producer().send("wide", b"%d" % number, partition=Partition(0, number % 8))
    wait_until(lambda: sorted(survivor.owned()) == ALL)
    wait_until(lambda: len(inbox.payloads) == 40)
    assert dead_inbox.messages == []
    del wide_broker


def test_a_lost_session_starts_over_and_loses_nothing(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    inbox, sender = Inbox(), open_client()
    unlucky_client = open_client()
    unlucky, other = join(unlucky_client, inbox), join(open_client(), inbox)
    wait_until(settled(sender, unlucky, other))
    producer, stop = sender.producer(), threading.Event()
    sent: list[bytes] = []

    def keep_sending() -> None:
        while not stop.is_set():
            payload = b"%d" % len(sent)
            producer.send("wide", payload)
            sent.append(payload)
            time.sleep(0.002)

    thread = threading.Thread(target=keep_sending)
    thread.start()
    try:
        for _ in range(3):
            expire_session(unlucky_client.session)
            wait_until(settled(sender, unlucky, other))
    finally:
        stop.set()
        thread.join()
    # At least once: what was delivered when the session went, and not yet committed, comes again from the next owner.
    wait_until(lambda: set(inbox.payloads) == set(sent))
    del wide_broker


def test_nothing_is_delivered_while_zookeeper_is_out_of_sight(
    wide_broker: BrokerProcess, open_client: OpenClient
) -> None:
    """Another member may already own our partitions, and we could not know."""
    inbox, sender, client = Inbox(), open_client(), open_client()
    consumer = join(client, inbox)
    sender.producer().send("wide", b"seen")
    wait_until(lambda: len(inbox.messages) == 1)
    kazoo = client.session._client
    pauses = consumer._fetcher.assignments.pause()  # what the callback of a broken connection does, without the break
    sender.producer().send("wide", b"later")
    time.sleep(0.5)
    assert len(inbox.messages) == 1
    consumer._fetcher.assignments.resume(pauses - 1)  # a CONNECTED that is older than the break
    time.sleep(0.3)
    assert len(inbox.messages) == 1
    kazoo._connection._socket.shutdown(2)  # a real break: SUSPENDED, then CONNECTED with the session intact
    wait_until(lambda: len(inbox.messages) == 2)
    assert sorted(consumer.owned()) == ALL
    del wide_broker


def test_two_consumers_of_one_id_are_refused(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    config = ConsumerConfig(consumer_id="fixed")
    first = join(open_client(), Inbox(), config)
    second = open_client(session_timeout_ms=4_000).consumer("group", config=config)  # waits that long for the id
    second.subscribe("wide", Inbox())
    with pytest.raises(ConsumerIdTaken, match="belongs to a live consumer"):
        second.start()
    assert sorted(first.owned()) == ALL
    del wide_broker


def test_two_consumers_of_one_id_are_refused_in_one_client(client: Client) -> None:
    """They share a session, by which ZooKeeper tells members apart."""
    config = ConsumerConfig(consumer_id="fixed")
    first = client.consumer("group", config=config)
    client.consumer("other", config=config)
    with pytest.raises(ConsumerIdTaken, match="group_fixed belongs to a consumer of this client"):
        client.consumer("group", config=config)
    first.close()
    client.consumer("group", config=config)


@pytest.mark.scenario("B10")
def test_more_consumers_than_partitions_leave_some_idle(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    clients = [open_client(), open_client()]
    consumers = []
    for client in clients:
        consumer = client.consumer("group", config=QUICK)
        consumer.subscribe("meta-test", Inbox())
        consumer.start()
        consumers.append(consumer)
    wait_until(lambda: sorted(shares(*consumers)) == [0, 1])
    idle = next(consumer for consumer in consumers if not consumer.owned())
    busy = next(consumer for consumer in consumers if consumer.owned())
    busy.close()
    wait_until(lambda: shares(idle) == [1])
    del wide_broker


def test_a_rebalance_is_told_with_its_reason_and_its_moves(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    one = join(open_client(), Inbox(), ConsumerConfig(consumer_id="aaa"))
    (started,) = one.rebalances()
    assert (started.number, started.reasons[0], started.released) == (1, "started", ())
    assert (started.claimed, started.owned, started.members, started.partitions) == (tuple(ALL), 8, 1, 8)
    two = join(open_client(), Inbox(), ConsumerConfig(consumer_id="zzz"))
    wait_until(lambda: shares(one, two) == [4, 4])
    wait_until(lambda: bool(one.rebalances()[-1].released))
    moved = one.rebalances()[-1]
    assert "members changed" in moved.reasons
    assert (moved.claimed, moved.released, moved.owned, moved.members) == ((), tuple(ALL[4:]), 4, 2)
    wait_until(lambda: sum(len(it.claimed) for it in two.rebalances()) == 4)
    assert two.rebalances()[-1].duration_s < 60
    del wide_broker


def test_a_listener_that_does_not_return_holds_up_its_own_partition_alone(
    wide_broker: BrokerProcess, open_client: OpenClient
) -> None:
    """The partitions of a dead member are taken over meanwhile, and all other moves happen."""
    inbox, sender = Inbox(), open_client()
    one = join(open_client(), inbox, ConsumerConfig(consumer_id="aaa", backoff_s_max=0.2))
    held, release, entered = Partition(0, 7), threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        if batch.partition == held:
            entered.set()
            assert release.wait(60)

    inbox.before = hold
    sender.producer().send("wide", b"slow", partition=held)
    assert entered.wait(60)
    two = join(open_client(), inbox, ConsumerConfig(consumer_id="zzz", backoff_s_max=0.2))
    wait_until(lambda: shares(one, two) == [4, 3])
    assert owners(sender)["wide", held] == one.consumer_id
    release.set()
    wait_until(settled(sender, one, two))
    assert inbox.payloads == {b"slow": 1}
    del wide_broker


def test_a_partition_that_another_took_unseen_is_dropped(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    """Another member takes it after our session expired unnoticed: our progress is not stored."""
    inbox, sender = Inbox(), open_client()
    one = join(open_client(), inbox)
    stolen, session = Partition(0, 3), sender.session
    path = f"/meta/consumers/group/owners/wide/{stolen}"
    session.delete(path)
    session.create(path, b"group_java", ephemeral=True)
    sender.producer().send("wide", b"theirs", partition=stolen)
    wait_until(lambda: ("wide", stolen) not in one.owned())
    assert not any(p.stored for p in list_group(session, "group").progress if p.partition == stolen)
    session.delete(path)
    wait_until(lambda: sorted(one.owned()) == ALL)
    wait_until(lambda: inbox.payloads[b"theirs"] == 2)  # read again from where the group was
    assert any("lost to another member" in record.reasons for record in one.rebalances())
    del wide_broker


def test_a_broker_refuses_a_stale_owner_that_looks_again(
    wide_broker: BrokerProcess, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Another client has fetched with a higher epoch. ZooKeeper names us as owner, so we claim with one above that."""
    inbox, sender = Inbox(), open_client()
    one = join(open_client(), inbox)
    refused = Partition(0, 3)
    sender.producer().send("wide", b"before", partition=refused)
    wait_until(lambda: len(inbox.messages) == 1)
    with WireClient(wide_broker.port) as wire:
        assert isinstance(wire.ask(Fetch("wide", "group", 3, 0, 100, 1, 0, 1, 40)), Data)
        wait_until(lambda: any("lost to another member" in record.reasons for record in one.rebalances()))
        assert "stale owner, giving the partition up group=group partition=wide/0-3 epoch=1 seen=40" in caplog.text
        wait_until(lambda: sorted(one.owned()) == ALL)
        sender.producer().send("wide", b"after", partition=refused)
        wait_until(lambda: b"after" in inbox.payloads)
        answer = wire.ask(Fetch("wide", "group", 3, 0, 100, 1, 0, 2, 40))
    assert isinstance(answer, Result)
    assert answer.text.startswith("41 is the epoch")
    epoch = sender.session.read(f"/meta/metaq/epochs/group/wide/{refused}")
    assert epoch is not None
    assert epoch.data == b"41"


def test_who_pulls_hands_partitions_over_with_what_is_done(wide_broker: BrokerProcess, open_client: OpenClient) -> None:
    """Two loops share eight partitions while a third comes and goes: nothing is lost, and what comes twice was in a
    loop's hands when its partition moved."""
    expected = {f"{number}".encode() for number in range(3000)}
    producer = open_client().producer()
    for number, payload in enumerate(sorted(expected)):
        producer.send_async("wide", payload, partition=Partition(0, number % 8))
    producer.flush()
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.2, prefetch_bytes=2000)
    seen: list[bytes] = []
    lock = threading.Lock()

    def loop(consumer: Consumer, count: int | None) -> None:
        with consumer:
            for message in itertools.islice(consumer, count):
                with lock:
                    seen.append(message.payload)

    consumers = [open_client().consumer("group", config=config) for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe("wide", max_bytes=500)
    threads = [
        threading.Thread(target=loop, args=(consumer, count))
        for consumer, count in zip(consumers, (None, None, 300), strict=True)
    ]
    for consumer in consumers:
        consumer.start()
    for thread in threads:
        thread.start()
    wait_until(lambda: expected <= set(seen))
    threads[2].join(60)
    for consumer in consumers[:2]:
        consumer.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    moves = sum(len(it.claimed) for consumer in consumers for it in consumer.rebalances())
    assert len(seen) - len(expected) <= moves
    del wide_broker
