"""A consumer group behind a filter at the broker, beside one that gets everything (spec B06)."""

import logging
from pathlib import Path

import pytest

from meta_client.client import Client
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.filters import install_filters
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot


@pytest.mark.scenario("B06")
def test_every_second_message_of_a_thousand_is_delivered_in_order(
    tmp_path: Path, zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "meta_client.consumer.fetcher")
    install_filters(tmp_path / "site", monkeypatch)
    config = CONFIG + "\n[filters.meta-test]\nhalf = 'test-even'\n"
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=config),
        Client(zookeeper.connect, session_timeout_ms=4_000) as client,
    ):
        producer = client.producer()
        for number in range(1000):
            producer.send_async("meta-test", b"%d:" % number)
        producer.flush()
        half, everything = Inbox(), Inbox()
        with client.consumer("half") as filtered, client.consumer("all") as unfiltered:
            filtered.subscribe("meta-test", half)
            unfiltered.subscribe("meta-test", everything)
            for consumer in (filtered, unfiltered):
                consumer.start()
            # Every second message ends a run: a thousand questions to broker and filter.
            wait_until(lambda: len(half.messages) == 500 and len(everything.messages) == 1000, timeout_s=120)
            wait_until(filtered.is_caught_up)
            producer.send("meta-test", b"1001:rejected")
            producer.send("meta-test", b"1002:accepted")
            wait_until(lambda: len(half.messages) == 501)
        assert [message.payload for message in half.messages] == [
            *(b"%d:" % number for number in range(0, 1000, 2)),
            b"1002:accepted",
        ]
        assert "filter skipped group=half partition=meta-test/0-0 from=" in caplog.text
        assert "offset moved" not in caplog.text  # nothing was lost
        again = Inbox()
        with client.consumer("half") as filtered:  # its offset was kept past what it never saw
            filtered.subscribe("meta-test", again)
            filtered.start()
            wait_until(filtered.is_caught_up)
        assert again.messages == []
