"""The relay: each message once and in order, whoever dies, refuses or is away."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from meta_client.outbox import Relay, contents, rows
from meta_client.outbox.relay import INTERVAL_S
from meta_client.producer.partitioners import PartitionContext
from meta_client.protocol.requests import TopicVerb
from meta_client.transactions import CommitStep
from tests.fixtures.reading import read_whole
from tests.fixtures.topic_commands import done
from tests.meta_client.outbox.conftest import LOCK_WAITS, OutboxWorld, drain
from tests.meta_client.transactions.conftest import PARTITIONS, do


def test_what_commits_is_moved_once_and_what_does_not_never(outboxed: OutboxWorld) -> None:
    outboxed.work(1, 2, 3)
    outboxed.work(4, commits=False)
    assert outboxed.status()[:1] == (3,)
    relay = outboxed.relay()
    drain(relay)
    outboxed.work(5)
    drain(relay)
    relay.close()
    assert (relay.counts.moved, relay.counts.refused, relay.trouble) == (4, 0, None)
    outboxed.world.check([1, 2, 3, 5])
    waiting, oldest_age_s, refused, relayed_age_s = outboxed.status()
    assert (waiting, oldest_age_s, refused) == (0, None, 0)
    assert relayed_age_s is not None
    assert relayed_age_s < 60


def test_a_message_keeps_payload_attribute_and_partition(outboxed: OutboxWorld) -> None:
    world = outboxed.world
    payload = bytes(range(256)) * 300  # more than a BLOB of MySQL's takes
    with closing(world.deciding.connect()) as connection:
        outboxed.outbox.send(connection, "orders", payload, "käse \N{SNOWMAN}", "0-3")
        outboxed.outbox.send(connection, "orders", b"mine", "", world.client.producer().partitions("orders")[2])
        outboxed.outbox.send(connection, "orders", b"")
        connection.commit()
    drain(outboxed.relay())
    deadline = time.monotonic() + 60
    while len(found := list(read_whole(world.client, "orders", 4, world.begins))) < 3:
        assert time.monotonic() < deadline
    by_payload = {one.payload: one for one in found}
    assert (by_payload[payload].attribute, str(by_payload[payload].partition)) == ("käse \N{SNOWMAN}", "0-3")
    assert (by_payload[b"mine"].attribute, str(by_payload[b"mine"].partition)) == ("", "0-2")
    assert by_payload[b""].attribute is None


def test_messages_of_one_attribute_keep_their_order(on_postgres: OutboxWorld) -> None:
    numbers = list(range(500))
    for first in range(0, 500, 50):
        on_postgres.work(*numbers[first : first + 50])
    drain(on_postgres.relay(rows_max=37))
    on_postgres.world.check(numbers)
    world, last = on_postgres.world, dict[str, int]()
    for message in read_whole(world.client, "orders", PARTITIONS["orders"], world.begins):
        assert message.attribute is not None
        assert int(message.payload) > last.get(message.attribute, -1)
        last[message.attribute] = int(message.payload)


def test_relays_in_threads_take_turns(outboxed: OutboxWorld) -> None:
    """Beside services that go on."""

    def work(at: int) -> None:
        for number in range(40):
            outboxed.work(at * 1000 + number)

    with outboxed.relay(rows_max=20) as one, outboxed.relay(rows_max=20) as other:
        threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + 60
        while outboxed.status().waiting:
            assert time.monotonic() < deadline, (one.trouble, other.trouble)
            time.sleep(0.05)
    assert one.counts.moved + other.counts.moved == 120
    outboxed.world.check(sorted(at * 1000 + n for at in range(3) for n in range(40)))


@pytest.mark.parametrize("outboxed", ["postgres", "mariadb"], indirect=True)  # an SQLite file has one writer at a time
def test_a_service_that_is_about_to_commit_keeps_nobody_waiting(outboxed: OutboxWorld) -> None:
    """Its row, and the gap around it, are locked: neither the relay nor other services may wait for that."""
    outboxed.work(1, 2, 3)
    with closing(outboxed.world.deciding.connect()) as slow:
        do(slow, "INSERT INTO numbers VALUES (9)")
        outboxed.outbox.send(slow, "orders", b"9")
        outboxed.work(4)
        began = time.monotonic()
        relay = outboxed.relay()
        drain(relay)
        outboxed.work(5)
        drain(relay)
        assert time.monotonic() - began < 20  # a lock of InnoDB is waited for 50 s
        assert (relay.counts.moved, relay.trouble) == (5, None)
        slow.commit()
    drain(relay)
    outboxed.world.check([1, 2, 3, 4, 5, 9])


def test_a_topic_without_a_broker_waits_and_the_others_do_not(
    on_postgres: OutboxWorld, caplog: pytest.LogCaptureFixture
) -> None:
    on_postgres.work(1, topic="made-later")
    on_postgres.work(2)
    relay = on_postgres.relay(rows_max=1)
    drain(relay)
    assert list(relay.waiting_for) == ["made-later"]
    assert (relay.counts.moved, on_postgres.status().waiting) == (1, 1)
    relay._waits.topics._until = dict.fromkeys(relay._waits.topics._until, 0.0)  # it is tried again, and told of once
    drain(relay)
    assert caplog.text.count("messages wait topic=made-later") == 1
    with on_postgres.world.brokers[0].client() as client:
        done(client, TopicVerb.CREATE, "made-later", partitions="1")
    deadline = time.monotonic() + 60
    while on_postgres.status().waiting:
        drain(relay)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert relay.counts.moved == 2
    assert not relay.waiting_for


def test_topics_without_a_broker_that_the_client_has_not_seen_delay_others_by_moments(
    on_postgres: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.outbox.destinations.LOOKS_S", 0.0)
    on_postgres.work(1)
    relay = on_postgres.relay()
    drain(relay)
    assert relay.counts.moved == 1
    for number in range(30):
        on_postgres.work(100 + number, topic=f"absent-{number}")
    on_postgres.work(2)
    relay.run_pass()
    assert (relay.counts.moved, len(relay.waiting_for)) == (2, 1)
    monkeypatch.undo()
    drain(relay)
    assert len(relay.waiting_for) == 30


def test_a_topic_is_told_of_while_it_is_tried_again(on_postgres: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe may take seconds, and nothing is well meanwhile."""
    monkeypatch.setattr("meta_client.outbox.waits.PASS_OVER_S", 0.0)
    seen: list[tuple[str, ...]] = []

    def look(message: PartitionContext) -> None:
        if message.attribute == "2":
            seen.append(relay.waiting_for)

    producer = on_postgres.world.client.producer(partitioner=look)
    on_postgres.work(1, topic="absent")
    with on_postgres.engine.connect() as connection:
        connection.execute(text("UPDATE metaq_outbox SET id = 100"))
        connection.commit()
    with closing(Relay(on_postgres.world.client, on_postgres.url, producer)) as relay:
        relay.run_pass()
        on_postgres.work(2)
        relay.run_pass()
    assert seen == [("absent",)]


def test_a_broker_that_gives_no_answer_delays_no_other_s_topics(wide: OutboxWorld) -> None:
    _, silent = wide.world.brokers
    relay = wide.relay()
    wide.work(1, topic="bills")
    drain(relay)
    silent.pause()
    try:
        wide.work(*range(2, 7), topic="bills")
        wide.work(*range(7, 12))
        deadline = time.monotonic() + 120
        while relay.counts.moved < 6:
            assert time.monotonic() < deadline, relay.trouble
            relay.run_pass()
        assert relay.waiting_for == ("bills",)
    finally:
        silent.resume()


@pytest.mark.parametrize("dies", [False, True])
def test_a_broker_that_has_not_committed_holds_up_the_topics_of_its_part_alone(wide: OutboxWorld, dies: bool) -> None:
    """It dies between PREPARE and COMMIT of a batch; another relay goes on, or the same one."""
    world = wide.world
    brokers = world.brokers
    dying = [brokers[1]]

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED and dying:
            dying.pop().kill()

    wide.work(1)
    wide.work(2, topic="bills")
    with world.open_client(observer=observe, resolves=False) as client, closing(Relay(client, wide.url)) as relay:
        relay.run_pass()
        assert (relay.counts.moved, relay.trouble, relay.waiting_for) == (2, None, ())
        if dies:
            relay = wide.relay()
        wide.work(3, topic="bills")
        wide.work(4)
        wide.work(5, topic="bills")
        wide.work(6)
        deadline = time.monotonic() + 60
        while relay.waiting_for != ("bills",) or world.messages("orders") != [1, 4, 6]:
            assert time.monotonic() < deadline, relay.trouble
            relay.run_pass()
        assert wide.status().waiting == 2
        with wide.engine.connect() as connection:
            assert 1 in {each.broker_id for each in rows.unconfirmed(connection)}
        brokers[1].start()
        while wide.status().waiting:
            assert time.monotonic() < deadline, relay.trouble
            relay.run_pass()
        by_partition: dict[object, list[int]] = {}
        for one in read_whole(world.client, "bills", PARTITIONS["bills"], world.begins):
            by_partition.setdefault(one.partition, []).append(int(one.payload))
        assert sorted(number for numbers in by_partition.values() for number in numbers) == [2, 3, 5]
        assert all(numbers == sorted(numbers) for numbers in by_partition.values())
        with wide.engine.connect() as connection:
            (last,) = rows.lock(connection).batches
        assert last.broker_id == brokers[1].broker_id


def wait_quick(relay: Relay) -> None:
    deadline = time.monotonic() + 60
    while relay.pause_s != INTERVAL_S:  # on a busy machine some looks take longer
        assert time.monotonic() < deadline
        drain(relay)


def test_a_look_that_takes_long_is_repeated_less_often(on_postgres: OutboxWorld) -> None:
    """Looks are long that pass over a million messages of a topic without a broker."""
    relay = on_postgres.relay()
    wait_quick(relay)
    with on_postgres.engine.connect() as connection, ThreadPoolExecutor() as thread:
        connection.execute(text("LOCK TABLE metaq_outbox"))
        looking = thread.submit(relay._run_pass)
        deadline = time.monotonic() + 60
        while on_postgres.world.deciding.query(LOCK_WAITS["postgres"]) == [(0,)]:
            assert time.monotonic() < deadline
        time.sleep(INTERVAL_S)
        connection.rollback()
        assert not looking.result(60)
    assert relay.pause_s > 2 * INTERVAL_S
    wait_quick(relay)


def test_what_no_relay_wrote_moves_nothing(on_postgres: OutboxWorld) -> None:
    on_postgres.work(1)
    on_postgres.world.deciding.execute("UPDATE metaq_outbox_relay SET state = '[[1]]'")
    relay = on_postgres.relay()
    relay.run_pass()
    assert str(relay.trouble).startswith(
        "the database has no outbox that can be used: column state of metaq_outbox_rel"
    )
    assert on_postgres.status().waiting == 1
    on_postgres.world.deciding.execute("UPDATE metaq_outbox_relay SET state = NULL")
    drain(relay)
    on_postgres.world.check([1])


def test_a_message_that_is_refused_is_set_aside_and_retried_by_hand(on_postgres: OutboxWorld) -> None:
    """It stands among many: the others go, in smaller batches around it."""
    on_postgres.work(*range(20))
    with on_postgres.engine.connect() as connection:
        connection.execute(text("UPDATE metaq_outbox SET attribute = repeat('x', 70000) WHERE id = 8"))
        connection.execute(text("UPDATE metaq_outbox SET partition = 'no partition' WHERE id = 5"))
        connection.execute(text("UPDATE metaq_outbox SET partition = '0-99' WHERE id = 12"))
        connection.commit()
    relay = on_postgres.relay()
    drain(relay)
    status = on_postgres.status()
    assert (relay.counts.moved + status.aside, status.waiting) == (20, 0)
    with on_postgres.engine.connect() as connection:
        (first, *_, last) = aside = contents.aside_rows(connection, 10)
        assert (last.id, "has no such partition" in last.reason) == (12, True)
        assert (first.id, first.topic) == (5, "orders")
        assert "is no partition" in first.reason
        assert relay.counts.refused == len(aside)
        connection.execute(text("UPDATE metaq_outbox_aside SET partition = NULL, attribute = 'a'"))
        connection.commit()
        assert rows.retry(connection, [5]) == 1
        rows.retry(connection, None)
    drain(relay)
    on_postgres.world.check(list(range(20)))


def test_a_broker_s_death_keeps_everything(on_postgres: OutboxWorld) -> None:
    on_postgres.work(1)
    (broker,) = on_postgres.world.brokers
    broker.kill()
    with on_postgres.relay() as relay:
        on_postgres.work(2)
        deadline = time.monotonic() + 60
        while relay.trouble is None and not relay.waiting_for:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert on_postgres.status().waiting == 2
        broker.start()
        on_postgres.world.check([1, 2])


@pytest.mark.parametrize(("payload", "attribute"), [(bytes(900_000), None), (b"", "a" * 900_000)])
def test_a_large_backlog_takes_little_memory_at_a_time(
    on_postgres: OutboxWorld, payload: bytes, attribute: str | None
) -> None:
    with closing(on_postgres.world.deciding.connect()) as connection:
        for _ in range(40):
            on_postgres.outbox.send(connection, "orders", payload, attribute)
        connection.commit()
    relay = on_postgres.relay()
    assert relay.run_pass()
    assert 1 <= relay.counts.moved <= 10
    drain(relay)
    assert relay.counts.moved == 40


def test_rows_that_another_program_deletes_are_not_sent_twice_or_lost(on_postgres: OutboxWorld) -> None:
    on_postgres.work(1, 2)
    relay = on_postgres.relay()
    with on_postgres.engine.connect() as connection:
        connection.execute(text("DELETE FROM metaq_outbox WHERE id = 1"))
        waiting = threading.Thread(target=relay.run_pass)
        waiting.start()
        deadline = time.monotonic() + 60
        while on_postgres.world.deciding.query(LOCK_WAITS["postgres"]) == [(0,)]:
            assert time.monotonic() < deadline
        connection.commit()
        waiting.join()
    assert relay.counts.moved == 0
    drain(relay)
    assert [
        message.payload for message in read_whole(on_postgres.world.client, "orders", 4, on_postgres.world.begins)
    ] == [b"2"]


def test_a_partitioner_that_fails_holds_everything_and_is_told_of(on_postgres: OutboxWorld) -> None:
    fails = True

    def choose(message: PartitionContext) -> None:
        if fails:
            raise KeyError(message.topic)

    client = on_postgres.world.client
    with closing(Relay(client, on_postgres.url, client.producer(partitioner=choose))) as relay:
        on_postgres.work(1, 2)
        assert not relay.run_pass()
        assert (relay.trouble, relay.counts.failed_passes) == ("KeyError: 'orders'", 1)
        assert on_postgres.status()[:3:2] == (2, 0), "nothing is set aside: it may be mended"
        fails = False
        drain(relay)
    found = read_whole(client, "orders", 4, on_postgres.world.begins)
    assert (relay.trouble, sorted(one.payload for one in found)) == (None, [b"1", b"2"])
