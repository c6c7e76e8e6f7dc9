"""A group that has read further than its broker goes, because a copy that had not got so far took its place."""

import logging
import shutil
from pathlib import Path

import pytest

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offsets import ZooKeeperOffsetStore
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.tree.nodes import Partition

TOPIC, NUMBER = "orders", Partition(0, 1)
SLOT = (TOPIC, NUMBER)


def put(broker: BrokerProcess, *bodies: bytes) -> int:
    """Put into one partition; returns where it ends then."""
    end = 0
    with WireClient(broker.port) as wire:
        for body in bodies:
            offset = wire.put(TOPIC, NUMBER.number, body).offset
            assert offset is not None
            end = offset + 20 + len(body)
    return end


def fall_back(broker: BrokerProcess, copy: Path) -> None:
    """The broker goes on with an older copy of its directory, as with a slave that was promoted."""
    broker.stop()
    shutil.rmtree(broker.data)
    shutil.copytree(copy, broker.data)
    broker.forget_journal()
    broker.start()


@pytest.fixture
def copy(broker: BrokerProcess, tmp_path: Path) -> Path:
    """Copy of a slave taken when there were three messages."""
    put(broker, b"one", b"two", b"three")
    broker.stop()
    shutil.copytree(broker.data, tmp_path / "copy")
    broker.start()
    return tmp_path / "copy"


def test_the_partition_stops_loudly_and_goes_on_where_told(
    broker: BrokerProcess, copy: Path, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    lost_end = put(broker, b"lost", b"lost too")
    inbox = Inbox()
    client = open_client()
    consumer = client.consumer("stops", config=ConsumerConfig(commit_period_s=0.1, backoff_s_max=0.1, fetch_wait_s=0.2))
    consumer.subscribe(TOPIC, inbox)
    with consumer, caplog.at_level(logging.ERROR):
        wait_until(lambda: len(inbox.messages) == 5)
        store = ZooKeeperOffsetStore(client.session, "stops")
        wait_until(lambda: store.load(*SLOT) == lost_end)
        fall_back(broker, copy)
        wait_until(lambda: consumer.paused() == [SLOT])
        with WireClient(broker.port) as wire:
            answer = wire.ask(Fetch(TOPIC, "stops", NUMBER.number, lost_end, 1000, 1, 0, wire.opaque()))
        assert isinstance(answer, Result)
        end = int(answer.message)
        assert (answer.status, end < lost_end) == (416, True)
        assert store.load(*SLOT) == lost_end
        lag = consumer.lags()[SLOT]
        assert (lag.bytes, lag.messages) == (None, None), "what it has not read stands before its offset"
        before_s = lag.seconds or 0
        said = [record.getMessage() for record in caplog.records if "beyond the end" in record.getMessage()]
        assert said == [
            f"offset beyond the end, the partition stops until somebody seeks group=stops partition=orders/0-1 "
            f"offset={lost_end} end={end} lost={lost_end - end}"
        ]
        put(broker, b"new")
        wait_until(lambda: (consumer.lags()[SLOT].seconds or 0) > before_s)
        assert consumer.seek(*SLOT, end)
        consumer.resume(SLOT)
        wait_until(lambda: inbox.payloads[b"new"] == 1)
        wait_until(lambda: store.load(*SLOT) == end + 20 + 3)
    assert sum(inbox.payloads.values()) == 6


def test_who_asked_for_it_goes_on_at_the_end_and_says_what_was_lost(
    broker: BrokerProcess, copy: Path, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    lost_end = put(broker, b"lost", b"lost too")
    inbox = Inbox()
    client = open_client()
    config = ConsumerConfig(commit_period_s=0.1, backoff_s_max=0.1, fetch_wait_s=0.2, ahead="end")
    consumer = client.consumer("moves", config=config)
    consumer.subscribe(TOPIC, inbox)
    with consumer, caplog.at_level(logging.ERROR):
        wait_until(lambda: len(inbox.messages) == 5)
        fall_back(broker, copy)
        wait_until(lambda: "beyond the end, going on at the end" in caplog.text)
        store = ZooKeeperOffsetStore(client.session, "moves")
        wait_until(lambda: (store.load(*SLOT) or 0) < lost_end)
        put(broker, b"new")
        wait_until(lambda: inbox.payloads[b"new"] == 1)
    assert sum(inbox.payloads.values()) == 6


def test_another_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="ahead 'begin' is neither stop nor end"):
        ConsumerConfig(ahead="begin")  # type: ignore[arg-type]  # that is what is tested
