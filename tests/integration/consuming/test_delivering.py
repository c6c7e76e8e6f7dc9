"""Delivery of messages to a consumer: every form, through a real broker and ZooKeeper."""

import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.error_policy import Reject, Retry
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import Seek
from meta_client.errors import ConsumerMisuse
from tests.fixtures.consuming import ONLY, QUICK, Calls, send, stored
from tests.fixtures.expiry import expire_session
from tests.integration.conftest import wait_until
from zk.tree.nodes import TopicPartition


@pytest.mark.scenario("B01")
def test_messages_one_by_one_and_one_that_fails_twice_is_seen_three_times(
    client: Client, consumer: Consumer, topic: str
) -> None:
    calls = Calls(m1=[RuntimeError("again"), RuntimeError("first")])
    expected = send(client, topic, 4)
    consumer.subscribe(topic, on_message=calls, retries_max=10)
    consumer.start()
    wait_until(lambda: len(calls.payloads) == 6)
    assert calls.payloads == [b"0", b"1", b"1", b"1", b"2", b"3"]
    wait_until(lambda: stored(client, topic) == 4 * 21)
    assert Counter(calls.payloads).keys() == set(expected)


def test_a_listener_that_exits_has_raised(client: Client, topic: str) -> None:
    """However often: its thread goes on, in each form of delivery."""
    send(client, topic, 2)
    exits = Counter[str]()

    def exit_five_times(group: str) -> None:
        exits[group] += 1
        if exits[group] <= 5:
            sys.exit("no more")

    def accept(message: ReceivedMessage) -> bool:
        exit_five_times("filtered")
        return True

    config = replace(QUICK, runners=1)
    with (
        client.consumer("batches", config=config) as batches,
        client.consumer("singles", config=config) as singles,
        client.consumer("filtered", config=config) as filtered,
    ):
        batches.subscribe(topic, on_batch=lambda batch: exit_five_times("batches"))
        singles.subscribe(topic, on_message=lambda message: exit_five_times("singles"), retries_max=2, on_reject=no)
        filtered.subscribe(topic, accept=accept)
        for consumer in (batches, singles, filtered):
            consumer.start()
        wait_until(lambda: stored(client, topic, "batches") == stored(client, topic, "singles") == 2 * 21)
        assert [message.payload for message in filtered.fetch(2, timeout_s=30)] == [b"0", b"1"]
    assert {group: count > 5 for group, count in exits.items()} == dict.fromkeys(exits, True)


def no(message: ReceivedMessage, error: Exception) -> None:
    """Refuses to refuse."""
    sys.exit(str(error))


def test_what_was_taken_before_a_message_that_fails_is_committed(
    client: Client, consumer: Consumer, topic: str
) -> None:
    calls = Calls(m2=[RuntimeError("never")] * 1000)
    send(client, topic, 4)
    consumer.subscribe(topic, on_message=calls)
    consumer.start()
    wait_until(lambda: stored(client, topic) == 42)
    wait_until(lambda: calls.payloads.count(b"2") > 3)
    assert calls.payloads[:2] == [b"0", b"1"]
    assert b"3" not in calls.payloads


def test_a_rejected_message_is_dropped_or_handed_to_a_function_that_is_called_until_it_returns(
    client: Client, topic: str
) -> None:
    for policy in ("drop", "own"):
        refused: list[tuple[bytes, str]] = []

        def refuse(message: ReceivedMessage, error: Exception, refused: list[tuple[bytes, str]] = refused) -> None:
            refused.append((message.payload, str(error)))
            if len(refused) == 1:
                raise RuntimeError("the dead letter topic is full")

        calls = Calls(m1=[RuntimeError("bad")] * 100)
        with client.consumer(policy, config=QUICK) as consumer:
            if policy == "drop":
                send(client, topic, 3)
            consumer.subscribe(topic, on_message=calls, retries_max=1, on_reject="drop" if policy == "drop" else refuse)
            consumer.start()
            wait_until(lambda calls=calls: b"2" in calls.payloads)  # type: ignore[misc]  # bound while it is the loop's
            wait_until(lambda policy=policy: stored(client, topic, policy) == 63)  # type: ignore[misc]  # the same
        if policy == "drop":
            assert calls.payloads == [b"0", b"1", b"1", b"2"]
        else:
            assert refused == [(b"1", "bad")] * 2


def test_reject_needs_no_repetition_and_retry_says_when(client: Client, consumer: Consumer, topic: str) -> None:
    refused: list[bytes] = []
    times: list[float] = []

    def on_message(message: ReceivedMessage) -> None:
        if message.payload == b"0":
            raise Reject("not ours")
        times.append(time.monotonic())
        if len(times) == 1:
            raise Retry("the database restarts", after_s=0.5)

    send(client, topic, 2)
    consumer.subscribe(topic, on_message=on_message, on_reject=lambda message, error: refused.append(message.payload))
    consumer.start()
    wait_until(lambda: len(times) == 2)
    assert refused == [b"0"]
    assert times[1] - times[0] >= 0.5


def test_a_partition_stops_at_a_rejected_message_until_it_is_resumed(
    client: Client, consumer: Consumer, topic: str
) -> None:
    calls = Calls(m1=[RuntimeError("bad")] * 2)
    send(client, topic, 3)
    consumer.subscribe(topic, on_message=calls, retries_max=1)
    consumer.start()
    wait_until(lambda: consumer.paused() == [(topic, ONLY)])
    time.sleep(0.3)
    assert calls.payloads == [b"0", b"1", b"1"]
    consumer.resume((topic, ONLY))
    wait_until(lambda: calls.payloads[3:] == [b"1", b"2"])
    assert consumer.paused() == []


def test_of_a_batch_that_fails_only_the_message_to_blame_is_rejected(
    client: Client, consumer: Consumer, topic: str
) -> None:
    batches: list[list[bytes]] = []
    refused: list[bytes] = []

    def on_batch(batch: Batch) -> None:
        payloads = [message.payload for message in batch.messages]
        batches.append(payloads)
        if b"1" in payloads:
            raise RuntimeError("bad")

    expected = send(client, topic, 3)
    consumer.subscribe(topic, on_batch, retries_max=2, on_reject=lambda message, error: refused.append(message.payload))
    consumer.start()
    wait_until(lambda: stored(client, topic) == 63)
    assert batches == [expected] * 3 + [[b"0"], [b"1"], [b"2"]]
    assert refused == [b"1"]


def test_only_what_the_filter_accepts_is_delivered_and_all_of_it_is_consumed(client: Client, topic: str) -> None:
    send(client, topic, 100)
    forms: dict[str, list[bytes]] = {"batch": [], "message": [], "pull": []}
    for group, seen in forms.items():
        with client.consumer(group, config=QUICK) as consumer:

            def odd(message: ReceivedMessage) -> bool:
                return int(message.payload) % 2 == 1 and int(message.payload) < 50

            def take(message: ReceivedMessage, seen: list[bytes] = seen) -> None:
                seen.append(message.payload)

            def take_all(batch: Batch, seen: list[bytes] = seen) -> None:
                seen += [message.payload for message in batch.messages]

            match group:
                case "batch":
                    consumer.subscribe(topic, take_all, max_bytes=300, accept=odd)
                case "message":
                    consumer.subscribe(topic, on_message=take, max_bytes=300, accept=odd)
                case _:
                    consumer.subscribe(topic, max_bytes=300, accept=odd)
            consumer.start()

            def is_consumed(group: str = group, seen: list[bytes] = seen, consumer: Consumer = consumer) -> bool:
                if group == "pull":  # what it gives in a second may be nothing: its group has just begun
                    seen += [message.payload for message in consumer.fetch(10, timeout_s=1)]
                return stored(client, topic, group) == 10 * 21 + 90 * 22

            wait_until(is_consumed)
        assert seen == [b"%d" % number for number in range(1, 50, 2)]


def test_iteration_and_fetch_share_what_was_fetched_ahead_and_commit_behind_the_user(
    client: Client, topic: str
) -> None:
    expected = send(client, topic, 1000)
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(topic, max_bytes=2000)
        consumer.start()
        seen = [message.payload for message in consumer.fetch(10)]
        for message in consumer:
            seen.append(message.payload)
            if len(seen) == 400:
                before = message.offset
                wait_until(lambda before=before: stored(client, topic) == before)  # type: ignore[misc]  # bound at once
                time.sleep(0.3)
                assert stored(client, topic) == before  # all before the one in our hands, and not that one
                break
        seen += [message.payload for message in consumer.fetch(100)]
        assert len(seen) > 400
        count = len(seen)
    assert seen == expected[:count]
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        rest: list[bytes] = []
        while len(seen) + len(rest) < len(expected):
            rest += [message.payload for message in consumer.fetch(1000)]
        wait_until(consumer.is_caught_up)
        assert consumer.fetch(1, timeout_s=0.05) == []
    assert seen + rest == expected


def test_a_block_that_raises_does_not_consume_what_was_in_hand(client: Client, topic: str) -> None:
    send(client, topic, 3)

    def consume_one_and_fail(consumer: Consumer) -> None:
        consumer.subscribe(topic)
        consumer.start()
        for message in consumer:
            if message.payload == b"1":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), client.consumer("group", config=QUICK) as consumer:
        consume_one_and_fail(consumer)
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert [message.payload for message in consumer.fetch(2)] == [b"1", b"2"]


def test_closing_from_elsewhere_ends_an_iteration(client: Client, topic: str) -> None:
    consumer = client.consumer("group", config=QUICK)
    consumer.subscribe(topic)
    consumer.start()
    seen: list[bytes] = []
    thread = threading.Thread(target=lambda: seen.extend(message.payload for message in consumer))
    thread.start()
    send(client, topic, 2)
    wait_until(lambda: len(seen) == 2)
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()


def test_what_is_fetched_ahead_is_bounded(client: Client, topic: str) -> None:
    send(client, topic, 2000)
    config = ConsumerConfig(backoff_s_max=0.1, prefetch_bytes=5000, runners=2)
    with client.consumer("group", config=config) as consumer:
        consumer.subscribe(topic, max_bytes=1000)
        consumer.start()
        seen = consumer.fetch(1)
        wait_until(lambda: consumer._buffer._bytes >= 5000)
        time.sleep(0.3)
        assert consumer._buffer._bytes <= 5000 + 1000
        while len(seen) < 2000:
            seen += consumer.fetch(100)
        assert consumer.fetch(1, timeout_s=0.05) == []
    assert [message.payload for message in seen] == [b"%d" % number for number in range(2000)]


@pytest.mark.scenario("B03")
def test_manual_acknowledgement_rolls_back_to_what_was_acknowledged(
    client: Client, consumer: Consumer, topic: str
) -> None:
    """Spec 13.2, B03."""
    calls: list[bytes] = []

    def on_message(message: ReceivedMessage) -> None:
        calls.append(message.payload)
        if len(calls) == 5:
            assert consumer.rollback(message.topic, message.partition)
        if len(calls) == 10:
            assert consumer.acknowledge(message)

    expected = send(client, topic, 5)
    consumer.subscribe(topic, on_message=on_message, acknowledge="manual")
    consumer.start()
    wait_until(lambda: stored(client, topic) == 5 * 21)
    time.sleep(0.2)
    assert calls == expected * 2


def test_manual_acknowledgement_of_what_was_fetched(client: Client, topic: str) -> None:
    send(client, topic, 10)
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(topic, acknowledge="manual", max_bytes=100)
        consumer.start()
        messages: list[ReceivedMessage] = []
        while len(messages) < 6:
            messages += consumer.fetch(6 - len(messages))
        consumer.fetch(1, timeout_s=0.3)
        assert stored(client, topic) is None
        assert consumer.acknowledge(messages[2])
        assert consumer.acknowledge(messages[1])  # acknowledged already
        wait_until(lambda: stored(client, topic) == 63)
        assert consumer.rollback(topic, ONLY)
        assert not consumer.acknowledge(messages[5])  # it will come again
        assert consumer.fetch(1)[0].payload == b"3"
        with pytest.raises(ConsumerMisuse, match="manual"):
            consumer.acknowledge(messages[0]._replace(topic=f"{topic}-b"))
    assert stored(client, topic) == 63


@pytest.mark.parametrize("is_listened_to", [True, False])
def test_what_was_on_its_way_during_a_rollback_acknowledges_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, *, is_listened_to: bool
) -> None:
    """Messages behind those rolled back: who acknowledges them would pass over these, if the process died."""
    send(client, topic, 9)
    offered: list[ReceivedMessage] = []
    calls, told = threading.Semaphore(0), list[bool]()
    consumer = client.consumer("group", config=QUICK)

    def on_message(message: ReceivedMessage) -> None:
        offered.append(message)
        if len(offered) > 3:
            told.append(consumer.acknowledge(message))
        calls.release()
        if len(offered) == 3:
            assert is_rolling_back.wait(60)

    def go_on() -> None:
        for message in consumer.fetch(3, timeout_s=60):
            on_message(message)

    is_rolling_back = threading.Event()
    seek = consumer._fetcher.seek

    def seek_later(key: TopicPartition, to: Seek) -> bool:
        """The thread that rolls back is held up, and others are not."""
        is_rolling_back.set()
        if not is_listened_to:
            other = threading.Thread(target=go_on)
            other.start()
            other.join()
            assert calls.acquire(timeout=60)
        time.sleep(0.2)
        return seek(key, to)

    with consumer:
        consumer.subscribe(topic, on_message=on_message if is_listened_to else None, acknowledge="manual", max_bytes=63)
        consumer.start()
        if not is_listened_to:
            offered += consumer.fetch(3, timeout_s=60)
        for _ in range(3 * is_listened_to):
            assert calls.acquire(timeout=60)
        monkeypatch.setattr(consumer._fetcher, "seek", seek_later)
        assert consumer.rollback(topic, ONLY)
        if not is_listened_to:
            assert told
            assert not any(told[:1])
            assert stored(client, topic) is None
            assert [message.payload for message in consumer.fetch(3, timeout_s=60)] == [b"0", b"1", b"2"]
        else:
            wait_until(lambda: stored(client, topic) == 9 * 21)
            assert [message.payload for message in offered[3:]] == [b"%d" % number for number in range(9)]
            assert all(told)


def test_a_lost_session_delivers_again_and_the_duplicate_cache_hides_it(client: Client, topic: str) -> None:
    expected = send(client, topic, 50)
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=3600, duplicates_max=100)
    cached, plain = Calls(), Calls()
    with (
        client.consumer("cached", config=config) as one,
        client.consumer("plain", config=ConsumerConfig(backoff_s_max=0.1, commit_period_s=3600)) as other,
    ):
        one.subscribe(topic, on_message=cached)
        other.subscribe(topic, on_message=plain)
        one.start()
        other.start()
        wait_until(lambda: len(cached.payloads) == len(plain.payloads) == 50)
        expire_session(client.session)
        wait_until(lambda: len(plain.payloads) == 100)
        wait_until(one.is_caught_up)
        assert cached.payloads == expected
        assert one.seek(topic, ONLY, "earliest")  # who asks to see them again does
        wait_until(lambda: len(cached.payloads) == 100)


def test_wrong_uses_are_named(client: Client, topic: str) -> None:
    consumer = client.consumer("group")
    with pytest.raises(ConsumerMisuse, match="start"):
        consumer.fetch()
    for wrong, match in (
        ({"on_batch": print, "on_message": print}, "exclude each other"),
        ({"acknowledge": "never"}, "neither 'auto' nor 'manual'"),
        ({"retries_max": -1, "on_message": print}, "negative"),
        ({"retries_max": 3}, "needs a listener"),
        ({"on_message": print, "on_reject": "explode"}, "on_reject 'explode'"),
    ):
        with pytest.raises(ValueError, match=match):
            consumer.subscribe(topic, **wrong)
    consumer.subscribe(topic, on_message=print)
    consumer.start()
    with pytest.raises(ConsumerMisuse, match="all its topics have listeners"):
        iter(consumer)
    with pytest.raises(ConsumerMisuse, match='acknowledge="manual"'):
        consumer.rollback(topic, ONLY)
    consumer.close()
