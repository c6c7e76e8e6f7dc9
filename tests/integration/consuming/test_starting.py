"""The start of a consumer, when it fails, and with times that never end."""

import math
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.error_policy import Reject
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.fixtures.consuming import QUICK, send, stored
from tests.integration.conftest import wait_until


@pytest.mark.parametrize("nth", range(QUICK.runners + 1))
def test_a_start_that_gets_no_thread_leaves_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """A runner's, or the group's, as in a container with a limit; a ^C meanwhile raises there, too."""
    begin, left = threading.Thread.start, nth

    def start(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        begin(thread)

    send(client, topic, 1)
    consumer = client.consumer("group", config=QUICK)
    consumer.subscribe(topic, lambda batch: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread") as raised:
            consumer.start()
    assert raised.value.__context__ is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metaq group ")]
    with client.consumer("group", config=QUICK) as another:
        another.subscribe(topic)
        another.start()
        assert len(another.fetch(1, timeout_s=60)) == 1


def test_times_without_end(client: Client, topic: str, tmp_path: Path) -> None:
    """Nothing is done by itself: the group's thread waits for events alone, and redelivery for a call."""
    config = replace(
        QUICK,
        commit_period_s=math.inf,
        watchdog_s=math.inf,
        redelivery_period_s=math.inf,
        dead_letter_directory=tmp_path / "refused",
    )
    offered: list[bytes] = []

    def on_message(message: ReceivedMessage) -> None:
        offered.append(message.payload)
        if len(offered) < 3:
            raise Reject("not now")

    def has_offered(count: int) -> bool:
        return len(offered) == count

    with client.consumer("group", config=config) as consumer:
        consumer.subscribe(topic, on_message=on_message, on_reject="dead_letter")
        consumer.start()
        send(client, topic, 1)
        wait_until(lambda: len(consumer.dead_letters()) == 1)
        for count in (2, 3):
            consumer.redeliver()
            wait_until(partial(has_offered, count))
        wait_until(lambda: not consumer.dead_letters())
    assert offered == [b"0"] * 3
    assert stored(client, topic) == 21


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="times must be positive"):
        replace(QUICK, commit_period_s=math.nan)
