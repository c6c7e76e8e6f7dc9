"""Realtime statistics: their text, their bounds, and what a real broker counts for topics with stat = true."""

import re

import pytest

from journal.records.xid import XaKey, Xid
from meta_broker.handlers.realtime import RESET_S, TOPICS_MAX, Realtime, Statistic
from meta_client.protocol.requests import Fetch, OffsetQuery, TopicVerb
from meta_client.protocol.requests import TransactionVerb as Verb
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.topic_commands import done, put
from tests.fixtures.wire import WireClient

KEY = XaKey(Xid.of("g", "b"), "uq")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_statistic_is_one_string_with_two_decimals_at_most(clock: Clock) -> None:
    realtime = Realtime(clock)
    assert realtime.total(Statistic.PUT) == "null"
    realtime.add(Statistic.MESSAGE_SIZE, "orders", 3, 100)
    assert realtime.total(Statistic.MESSAGE_SIZE) == (
        "Count=3,Value=100,Value/Count=33.33,Count/Duration=invalid,Duration=0"
    )
    clock.now += 2.5
    realtime.add(Statistic.MESSAGE_SIZE, "stock", 1, 20)
    assert realtime.total(Statistic.MESSAGE_SIZE) == (
        "Count=4,Value=120,Value/Count=30,Count/Duration=1.6,Duration=2.5"
    )
    assert realtime.of_topic(Statistic.MESSAGE_SIZE, "stock").startswith("Count=1,Value=20,")
    assert realtime.of_topic(Statistic.PUT, "stock") == "null"


def test_it_starts_over_every_half_hour_and_when_told(clock: Clock) -> None:
    realtime = Realtime(clock)
    realtime.add(Statistic.PUT, "orders")
    clock.now += RESET_S - 1
    assert realtime.total(Statistic.PUT) == "Count=1,Value=1,Value/Count=1,Count/Duration=0,Duration=1799"
    clock.now += 1
    assert realtime.total(Statistic.PUT) == "null"
    realtime.add(Statistic.PUT, "orders")
    realtime.reset()
    assert realtime.of_topic(Statistic.PUT, "orders") == "null"


def test_a_strangers_names_do_not_fill_memory(clock: Clock) -> None:
    realtime = Realtime(clock)
    for number in range(TOPICS_MAX + 500):
        realtime.add(Statistic.GET, f"made-up-{number}")
    assert realtime.of_topic(Statistic.GET, f"made-up-{TOPICS_MAX - 1}") != "null"
    assert realtime.of_topic(Statistic.GET, f"made-up-{TOPICS_MAX}") == "null"
    assert realtime.total(Statistic.GET).startswith(f"Count={TOPICS_MAX + 500},")


def test_a_broker_counts_the_topics_that_want_it(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        done(client, TopicVerb.CREATE, "counted", partitions="2", stat="true")
        client.put("counted", 0, b"four")
        client.verb(Verb.BEGIN, KEY)
        client.put("counted", 1, b"twelve bytes", KEY)
        assert put(client, "counted", 2).status == 500
        assert put(client, "orders", 9).status == 500
        client.put("orders", 0, b"uncounted")
        client.get("counted", 0, 0)
        client.get("counted", 0, 24)
        client.ask(Fetch("counted", "g", 0, 0, 100, 0, 0, client.opaque()))
        client.get("orders", 0, 0)
        client.result(OffsetQuery("counted", "g", 0, 0, client.opaque()))
        wanted = ["put 2,2", "get 3,3", "offset 1,1", "get_miss 1,1", "put_failed 1,1", "message_size 2,16"]
        assert counted(client.stats("realtime"), "realtime_") == wanted
        assert counted(client.stats("counted"), "topic_realtime_") == wanted
        assert counted(client.stats("orders"), "topic_realtime_") == []
        assert client.stats("reset") == ["STATS", "reset ok", "END"]
        assert counted(client.stats("realtime"), "realtime_") == []


def counted(lines: list[str], prefix: str) -> list[str]:
    """`name count,value` of every statistic that is not null."""
    number = r"\d+(?:\.\d{1,2})?"
    pattern = (
        rf"{prefix}(\w+) Count=(\d+),Value=(\d+),Value/Count={number},Count/Duration=(?:{number}|invalid),"
        rf"Duration={number}"
    )
    found = [re.fullmatch(pattern, line) for line in lines]
    return [f"{match[1]} {match[2]},{match[3]}" for match in found if match]
