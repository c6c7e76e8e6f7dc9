"""Messages for a broker that is away wait for it in their order, and others pass them."""

import itertools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import update

from meta_client import Client
from meta_client.outbox import Relay, contents, destinations, rows, waits
from meta_client.outbox.relay_metrics import ready
from meta_client.outbox.relay_state import RelayState
from meta_client.outbox.tables import ASIDE, OUTBOX
from meta_client.protocol.requests import TopicVerb
from meta_client.transactions import CommitStep
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from tests.fixtures.topic_commands import done
from tests.meta_client.outbox.conftest import OutboxWorld, drain
from tests.meta_client.transactions.conftest import World, make_postgres
from zk.embedded.chroot import Chroot

KEYS = 12
_numbers = itertools.count(time.time_ns())


@pytest.fixture
def spread(wide: OutboxWorld) -> Iterator[str]:
    """A topic with two partitions on each of two brokers, as the client knows it."""
    with spread_topic(wide) as topic:
        yield topic


@pytest.fixture
def other_spread(wide: OutboxWorld) -> Iterator[str]:
    with spread_topic(wide) as topic:
        yield topic


@contextmanager
def spread_topic(wide: OutboxWorld) -> Iterator[str]:
    topic = f"spread-{next(_numbers)}"
    for broker in wide.world.brokers:
        with broker.client() as client:
            done(client, TopicVerb.CREATE, topic, partitions="2")
    assert read_whole(wide.world.client, topic, 4) == []
    yield topic
    for broker in wide.world.brokers:
        with broker.client() as client:
            done(client, TopicVerb.DELETE, topic)


def send(on: OutboxWorld, topic: str, *numbers: int, keyed: bool = True, partition: str | None = None) -> None:
    with closing(on.world.deciding.connect()) as connection:
        for number in numbers:
            on.outbox.send(connection, topic, b"%d" % number, str(number % KEYS) if keyed else None, partition)
        connection.commit()


def received(on: OutboxWorld, topic: str, partitions: int = 4) -> list[int]:
    """The numbers, once it is checked that those of each key are in order."""
    found = read_whole(on.world.client, topic, partitions, on.world.begins)
    last: dict[str | None, int] = {}
    for one in found:
        if one.attribute is not None:
            assert int(one.payload) > last.get(one.attribute, -1)
            last[one.attribute] = int(one.payload)
    return sorted(int(one.payload) for one in found)


def wait_away(relay: Relay, broker_id: int) -> None:
    deadline = time.monotonic() + 60
    while relay.brokers_away != (broker_id,):
        assert time.monotonic() < deadline, (relay.brokers_away, relay.waiting_for, relay.trouble)
        relay.run_pass()
    drain(relay)


def wait_moved(on: OutboxWorld, *relays: Relay) -> None:
    deadline = time.monotonic() + 60
    while on.status().waiting:
        assert time.monotonic() < deadline, [(one.trouble, one.brokers_away, one.waiting_for) for one in relays]
        for relay in relays:
            drain(relay)


def state(on: OutboxWorld) -> RelayState:
    with on.engine.connect() as connection:
        return rows.read_state(connection)


@pytest.mark.parametrize("rows_max", [3, 4_000])
def test_a_broker_that_is_down_holds_back_its_own_messages_alone(
    wide: OutboxWorld, spread: str, rows_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, away = wide.world.brokers
    relay = wide.relay(rows_max=rows_max)
    away.kill()
    send(wide, spread, *range(2 * KEYS))
    wait_away(relay, 1)
    first = received(wide, spread, 2)
    send(wide, spread, *range(2 * KEYS, 4 * KEYS))
    other = wide.relay(rows_max=rows_max)  # as one that goes on where the first died
    wait_away(other, 1)
    before = received(wide, spread, 2)
    deferred = 4 * KEYS - len(before)
    assert 0 < deferred < 4 * KEYS
    assert {one % KEYS for one in before} == {one % KEYS for one in first}, "each key is on one side"
    assert (wide.status().waiting, state(wide).deferred) == (deferred, (1,))
    assert caplog.text.count("messages wait broker=1 reason=") == 2
    away.start()
    send(wide, spread, *range(4 * KEYS, 5 * KEYS))
    wait_moved(wide, relay, other)
    assert received(wide, spread) == list(range(5 * KEYS))
    assert (state(wide).deferred, relay.counts.moved + other.counts.moved) == ((), 5 * KEYS)


def test_messages_without_an_attribute_go_to_brokers_that_are_up(wide: OutboxWorld, spread: str) -> None:
    relay = wide.relay()
    wide.world.brokers[1].kill()
    send(wide, spread, 1, partition="1-0")  # until the client has seen that the broker is away
    wait_away(relay, 1)
    send(wide, spread, *range(2, 10), keyed=False)
    drain(relay)
    found = read_whole(wide.world.client, spread, 2, wide.world.begins)
    assert {str(one.partition) for one in found} == {"0-0", "0-1"}
    assert sorted(int(one.payload) for one in found) == list(range(2, 10))
    assert wide.status().waiting == 1
    wide.world.brokers[1].start()
    wait_moved(wide, relay)
    assert received(wide, spread) == list(range(1, 10))


def test_a_broker_that_has_not_committed_gets_nothing_before_it_has(wide: OutboxWorld, spread: str) -> None:
    """It dies between PREPARE and COMMIT of a batch; what follows must not overtake it."""
    dying = [wide.world.brokers[1]]

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED and dying:
            dying.pop().kill()

    send(wide, spread, *range(2 * KEYS))
    with wide.world.open_client(observer=observe, resolves=False) as client, closing(Relay(client, wide.url)) as relay:
        assert client.topology.view(spread, 10).known
        relay.run_pass()
        assert relay.counts.moved == 2 * KEYS
        send(wide, spread, *range(2 * KEYS, 4 * KEYS))
        wait_away(relay, 1)
        assert 0 < len(received(wide, spread, 2)) < 4 * KEYS
        wide.world.brokers[1].start()
        wait_moved(wide, relay)
        assert received(wide, spread) == list(range(4 * KEYS))


def test_a_deferred_message_that_its_broker_refuses_is_set_aside(wide: OutboxWorld, spread: str) -> None:
    relay = wide.relay()
    wide.world.brokers[1].kill()
    send(wide, spread, 1, partition="1-9")
    send(wide, spread, 2, partition="1-1")
    wait_away(relay, 1)
    wide.world.brokers[1].start()
    wait_moved(wide, relay)
    with wide.engine.connect() as connection:
        (row,) = contents.aside_rows(connection, 10)
        assert "has no such partition" in row.reason
        connection.execute(update(ASIDE).values(partition=None))
        connection.commit()
        rows.retry(connection, None)
    drain(relay)
    assert received(wide, spread) == [1, 2]


def test_a_new_relay_sends_deferred_messages_of_more_topics_than_it_looks_for_at_once(
    wide: OutboxWorld, spread: str, other_spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = wide.relay()
    wide.world.brokers[1].kill()
    send(wide, spread, 1, partition="1-0")
    send(wide, other_spread, 2, partition="1-0")
    send(wide, spread, 3, partition="1-0")
    wait_away(relay, 1)
    wide.world.brokers[1].start()
    monkeypatch.setattr(destinations, "LOOKS_S", -1.0)
    with wide.world.open_client() as client, closing(Relay(client, wide.url)) as other:
        wait_moved(wide, other)
    assert (received(wide, spread), received(wide, other_spread)) == ([1, 3], [2])


def test_a_broker_that_is_back_gets_batches_while_another_one_is_tried(
    wide: OutboxWorld, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = wide.relay(rows_max=5)
    away = wide.world.brokers[1]
    away.kill()
    send(wide, spread, *range(50), partition="1-0")
    send(wide, spread, 50, partition="7-0")
    deadline = time.monotonic() + 60
    while relay.brokers_away != (1, 7):
        assert time.monotonic() < deadline
        relay.run_pass()
    away.start()
    monkeypatch.setattr(waits, "PASS_OVER_S", 0.0)  # broker 7 is due each time
    passes = 0
    while wide.status().waiting > 1:
        assert time.monotonic() < deadline
        moved = relay.counts.moved
        relay.run_pass()
        passes += relay.counts.moved > moved
    assert passes == 11, "one message, then five at once"


def test_a_topic_that_a_broker_does_not_offer_holds_back_no_other_one(wide: OutboxWorld, spread: str) -> None:
    """A message names a broker that is up without its topic."""
    relay = wide.relay()
    send(wide, "orders", -2, partition="1-0")
    drain(relay)
    send(wide, spread, *range(2 * KEYS))
    deadline = time.monotonic() + 15
    while wide.status().waiting > 1:
        assert time.monotonic() < deadline, relay.brokers_away
        drain(relay)
    assert received(wide, spread) == list(range(2 * KEYS))
    while ("orders", 1) not in relay.places_away:
        assert time.monotonic() < deadline
        relay.run_pass()
    assert "messages of topic orders wait for broker 1" in ready(relay).why_not
    assert (relay.brokers_away, relay.waiting_for, state(wide).deferred) == ((), (), (1,))
    with wide.world.brokers[1].client() as client:
        done(client, TopicVerb.CREATE, "orders", partitions="1")
    send(wide, "orders", *range(KEYS), partition="1-0")
    wait_moved(wide, relay)
    begins = wide.world.begins
    found = [one for one in read_whole(wide.world.client, "orders", 5, begins) if one.partition.broker_id == 1]
    assert [int(one.payload) for one in found] == [-2, *range(KEYS)]
    with wide.world.brokers[1].client() as client:
        done(client, TopicVerb.DELETE, "orders")


def test_a_closed_partition_holds_back_its_topic_at_its_broker_alone(
    wide: OutboxWorld, spread: str, other_spread: str, caplog: pytest.LogCaptureFixture
) -> None:
    relay = wide.relay()
    with wide.world.brokers[1].client() as client:
        done(client, TopicVerb.CLOSE, spread, partitions="0")
    for topic in (spread, other_spread):
        send(wide, topic, *range(4 * KEYS))
    deadline = time.monotonic() + 30
    while relay.places_away != ((spread, 1),) or received(wide, other_spread) != list(range(4 * KEYS)):
        assert time.monotonic() < deadline, (relay.places_away, relay.waiting_for, relay.trouble)
        drain(relay)
    alike = read_whole(wide.world.client, other_spread, 4, wide.world.begins)  # each key as in the other topic
    assert wide.status().waiting == sum(one.partition.broker_id == 1 for one in alike) > 0
    assert ready(relay).why_not == (f"messages of topic {spread} wait for broker 1",)
    assert (relay.waiting_for, relay.brokers_away, state(wide).deferred) == ((), (), (1,))
    assert (
        caplog.text.count("messages wait ") == caplog.text.count(f"messages wait topic={spread} broker=1 reason=") == 1
    )
    send(wide, spread, *range(4 * KEYS, 5 * KEYS))
    drain(relay)
    with wide.world.brokers[1].client() as client:
        done(client, TopicVerb.OPEN, spread, partitions="0")
    send(wide, spread, *range(5 * KEYS, 6 * KEYS))
    wait_moved(wide, relay)
    assert received(wide, spread) == list(range(6 * KEYS))


def test_a_broker_without_slaves_in_sync_holds_back_its_own_messages_alone(
    tmp_path: Path, zookeeper: Chroot, database: Database
) -> None:
    config = CONFIG + '\n[replication]\nmode = "sync"\n'
    with (
        running_broker(tmp_path / "alone", zookeeper.connect),
        running_broker(tmp_path / "sync", zookeeper.connect, broker_id=1, config=config) as refusing,
        Client(zookeeper.connect) as client,
    ):
        on = OutboxWorld(World(make_postgres(database), [], zookeeper.connect, client, {}))
        with on.closing:
            relay = on.relay()
            send(on, "orders", *range(4 * KEYS))
            deadline = time.monotonic() + 30
            while relay.brokers_away != (1,) or on.status().waiting == 4 * KEYS:
                assert time.monotonic() < deadline, (relay.places_away, relay.waiting_for, relay.trouble)
                drain(relay)
            assert 0 < on.status().waiting < 4 * KEYS
            assert (relay.waiting_for, on.status().aside, state(on).deferred) == ((), 0, (1,))
            refusing.kill()
            refusing.config_path.write_text(config + 'without_slaves = "degrade"\n')
            refusing.start()
            wait_moved(on, relay)
            assert received(on, "orders", 8) == list(range(4 * KEYS))


def test_a_release_counts_no_branches_that_are_committed(wide: OutboxWorld, spread: str) -> None:
    send(wide, spread, *range(KEYS))
    drain(wide.relay())
    wide.world.wait_quiet()
    assert 1 in {branch.broker_id for branch in state(wide).batches}
    with wide.engine.connect() as connection:
        assert rows.release(connection, 1) == (0, 0)
    assert 1 not in {branch.broker_id for branch in state(wide).batches}


def test_what_is_released_is_not_overtaken_if_its_broker_comes_back_meanwhile(
    wide: OutboxWorld, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PUT_BACK_AT_ONCE", 2)
    away = wide.world.brokers[1]
    relay = wide.relay()
    away.kill()
    send(wide, spread, *range(60), partition="1-0")
    wait_away(relay, 1)
    away.start()
    with wide.world.open_client() as client, wide.engine.connect() as connection:
        deadline = time.monotonic() + 60
        while not client.topology.view(spread, 10).on_broker(1):
            assert time.monotonic() < deadline
        with Relay(client, wide.url, rows_max=1):
            rows.release(connection, 1)
            wait_moved(wide)
    found = read_whole(wide.world.client, spread, 4, wide.world.begins)
    assert [int(one.payload) for one in found] == list(range(60))


def test_what_waits_for_a_broker_that_is_not_there_goes_elsewhere_once_it_is_given_up(
    outboxed: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PUT_BACK_AT_ONCE", 2)
    send(outboxed, "orders", 1, 2, 3, 4, 5, partition="7-0")
    send(outboxed, "orders", 6)
    relay = outboxed.relay(rows_max=2)
    drain(relay)
    assert (relay.counts.moved, relay.trouble, relay.brokers_away) == (1, None, (7,))
    assert outboxed.status()[::2] == (5, 0)
    with outboxed.engine.connect() as connection:
        assert contents.deferred_counts(connection) == {7: 5}
        assert rows.release(connection, 8) == (0, 0)
        assert rows.release(connection, 7) == (0, 5)
        assert (contents.deferred_counts(connection), rows.read_state(connection).deferred) == ({}, ())
        connection.execute(update(OUTBOX).values(partition="0-1"))
        connection.commit()
    drain(relay)
    assert outboxed.world.messages() == [1, 2, 3, 4, 5, 6]
    assert outboxed.status().waiting == 0
