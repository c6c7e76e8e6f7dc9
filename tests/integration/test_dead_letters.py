"""Dead letters: stored, offered again, taken, listed, resent and dropped; on a real broker."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meta_client.client import Client
from meta_client.consumer import redelivery
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.dead_letters.store import StoreFull, StoreInUse
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ConsumerMisuse
from tests.fixtures.consuming import ONLY, Calls, send, stored
from tests.fixtures.forked import run_metaq
from tests.integration.conftest import wait_until
from zk.embedded.chroot import Chroot


@pytest.fixture
def client(shared: Chroot) -> Iterator[Client]:
    with Client(shared.connect) as it:
        yield it


def config(directory: Path, period_s: float = 3600, **more: Any) -> ConsumerConfig:
    return ConsumerConfig(
        backoff_s_max=0.1, commit_period_s=0.1, dead_letter_directory=directory, redelivery_period_s=period_s, **more
    )


@pytest.mark.scenario("B02")
def test_six_deliveries_then_redelivery_until_it_is_taken(client: Client, tmp_path: Path, topic: str) -> None:
    """Spec 13.2, B02: one delivery, five repetitions, two redeliveries; the other message comes once."""
    calls = Calls(m0=[RuntimeError("bad")] * 7)
    send(client, topic, 2)
    with client.consumer("group", config=config(tmp_path, 0.3)) as consumer:
        consumer.subscribe(topic, on_message=calls, retries_max=5, on_reject="dead_letter")
        consumer.start()
        wait_until(lambda: stored(client, topic) == 42)
        wait_until(lambda: len(calls.payloads) == 9)
        wait_until(lambda: not consumer.dead_letters())
    assert calls.payloads.count(b"0") == 8
    assert calls.payloads.count(b"1") == 1
    assert calls.payloads[:6] == [b"0"] * 6


def test_a_mended_consumer_takes_the_dead_letters_of_the_last_one(client: Client, tmp_path: Path, topic: str) -> None:
    send(client, topic, 3)
    with client.consumer("group", config=config(tmp_path)) as consumer:
        consumer.subscribe(
            topic, on_message=Calls(m1=[RuntimeError("bad")] * 9), retries_max=0, on_reject="dead_letter"
        )
        consumer.start()
        wait_until(lambda: stored(client, topic) == 63)
        (entry,) = consumer.dead_letters()
        assert (str(entry.address), entry.record.reason) == (f"{topic}/0-0@21", "RuntimeError('bad')")
        other = client.consumer("group", config=config(tmp_path))
        other.subscribe(topic, on_message=print)
        with pytest.raises(StoreInUse):
            other.start()
    mended = Calls()
    with client.consumer("group", config=config(tmp_path)) as consumer:
        consumer.subscribe(topic, on_message=mended)
        consumer.start()
        consumer.redeliver()
        wait_until(lambda: mended.payloads == [b"1"])
        wait_until(lambda: not consumer.dead_letters())


def test_a_full_store_holds_the_partition_up_and_loses_nothing(
    client: Client, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "FIRST_S", 3600.0)
    calls = Calls(m0=[RuntimeError("bad")] * 99, m1=[RuntimeError("bad")] * 3)
    send(client, topic, 3)
    with client.consumer("group", config=config(tmp_path, dead_letter_bytes_max=1500)) as consumer:
        consumer.subscribe(topic, on_message=calls, retries_max=0, on_reject="dead_letter")
        consumer.start()
        wait_until(lambda: b"2" in calls.payloads)
        assert calls.payloads == [b"0", b"1", b"1", b"1", b"1", b"2"]
        message = ReceivedMessage(topic, ONLY, 0, 0, 0, None, b"", 21)
        with pytest.raises(StoreFull):
            consumer.reject(message._replace(offset=63), ValueError("by hand"))
        with pytest.raises(ConsumerMisuse):
            consumer.reject(message._replace(topic=f"{topic}-b"), ValueError())


def test_a_redelivery_and_a_delivery_of_one_partition_never_overlap(client: Client, tmp_path: Path, topic: str) -> None:
    busy = threading.Lock()
    seen: list[bytes] = []
    rejecting = threading.Event()
    rejecting.set()

    def on_message(message: ReceivedMessage) -> None:
        assert busy.acquire(blocking=False), "two at a time"
        try:
            if rejecting.is_set():
                raise RuntimeError("bad")
            seen.append(message.payload)
        finally:
            busy.release()

    first = send(client, topic, 50)
    with client.consumer("group", config=config(tmp_path, 0.05)) as consumer:
        consumer.subscribe(topic, on_message=on_message, retries_max=0, on_reject="dead_letter", max_bytes=100)
        consumer.start()
        wait_until(lambda: len(consumer.dead_letters()) == 50)
        rejecting.clear()
        more = send(client, topic, 200, "more-")
        wait_until(lambda: len(seen) == 250)
        assert sorted(seen) == sorted(first + more)
        wait_until(lambda: not consumer.dead_letters())


def test_a_pulling_consumer_rejects_by_hand(client: Client, tmp_path: Path, topic: str) -> None:
    send(client, topic, 3)
    with client.consumer("group", config=config(tmp_path)) as consumer:
        consumer.subscribe(topic, on_reject="dead_letter", acknowledge="manual")
        consumer.start()
        message = consumer.fetch(1)[0]
        consumer.reject(message, ValueError("no such customer"))
        assert consumer.acknowledge(message)
        assert [str(entry.address) for entry in consumer.dead_letters()] == [f"{topic}/0-0@0"]
    with pytest.raises(ValueError, match="dead_letter_directory"):
        client.consumer("group").subscribe(topic, on_message=print, on_reject="dead_letter")


def metaq(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq("groups", "dead-letters", *words)
    assert done.returncode == status, done.stderr
    return done


def test_the_command_line_lists_resends_and_drops(client: Client, tmp_path: Path, shared: Chroot, topic: str) -> None:
    send(client, topic, 3)
    directory = tmp_path / "refused"
    consumer = client.consumer("group", config=config(directory))
    calls = Calls(m0=[RuntimeError("bad")] * 99, m1=[OSError(5)] * 99, m2=[OSError()] * 99)
    consumer.subscribe(topic, on_message=calls, retries_max=0, on_reject="dead_letter")
    with consumer:
        wait_until(lambda: len(consumer.dead_letters()) == 3)
        listed = [json.loads(line) for line in metaq("list", str(directory), "--json").stdout.splitlines()]
        assert [(row["message"], row["payload"]) for row in listed] == [
            (f"{topic}/0-0@0", "0"),
            (f"{topic}/0-0@21", "1"),
            (f"{topic}/0-0@42", "2"),
        ]
        assert "RuntimeError('bad')" in metaq("list", str(directory)).stdout
        assert "in use by another consumer" in metaq("drop", str(directory), "--all", status=2).stderr
    assert "name messages" in metaq("drop", str(directory), status=2).stderr
    assert "names no message" in metaq("drop", str(directory), "x", status=2).stderr
    assert "no such message waits" in metaq("drop", str(directory), f"{topic}/0-0@7", status=1).stderr
    assert "dropped 1 messages" in metaq("drop", str(directory), f"{topic}/0-0@21").stderr
    metaq("resend", str(directory), "--all", "--to", f"{topic}-b", "--zk", shared.connect)
    assert "no dead letter waits here" in metaq("list", str(directory)).stdout
    with client.consumer("reader") as reader:
        reader.subscribe(f"{topic}-b")
        reader.start()
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.payload for message in reader.fetch(2)]
    assert sorted(found) == [b"0", b"2"]
