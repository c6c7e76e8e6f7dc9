"""Choice of the replica to ask, for every answer of a broker and every kind of failure."""

import pytest

from meta_client.consumer.routing import SHUN_S, Route, Routes, plan_routes, suggested_slave
from meta_client.protocol.errors import Moved
from zk.brokers.cluster import BrokerEntry
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

MASTER, ONE, TWO = BrokerUrl("a", 1), BrokerUrl("b", 1), BrokerUrl("c", 2)
SLAVES = {1: ONE, 2: TWO}
PLACE = Partition(0, 0)
OTHER = Partition(0, 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def routes_to(entry: BrokerEntry, clock: Clock | None = None) -> Routes:
    routes = Routes(clock or Clock())
    routes.set_brokers({0: entry})
    return routes


def moved(offset: int, *, is_filtered: bool = False) -> Moved:
    return Moved(301, str(offset), "get", offset, is_filtered=is_filtered)


def test_nobody_is_asked_while_nobody_is_up() -> None:
    assert Routes().choose(PLACE, None) is None
    assert routes_to(BrokerEntry(MASTER)).choose(Partition(1, 0), None) is None


def test_the_master_is_asked_until_it_names_a_slave_and_again_once_that_names_it() -> None:
    routes = routes_to(BrokerEntry(MASTER, SLAVES))
    assert routes.choose(PLACE, None) == Route(MASTER)
    assert routes.choose(PLACE, suggested_slave("s2")) == Route(TWO, 2)
    assert routes.choose(PLACE, suggested_slave("m")) == Route(MASTER)


def test_a_slave_that_is_not_registered_is_no_place_to_go() -> None:
    assert routes_to(BrokerEntry(MASTER, {1: ONE})).choose(PLACE, 2) == Route(MASTER)


def test_while_the_master_is_away_its_slaves_share_the_partitions_and_are_left_when_it_is_back() -> None:
    routes = routes_to(BrokerEntry(None, SLAVES))
    assert [routes.choose(place, None) for place in (PLACE, OTHER, PLACE)] == [
        Route(ONE, 1),
        Route(TWO, 2),
        Route(ONE, 1),
    ]
    routes.set_brokers({0: BrokerEntry(MASTER, SLAVES)})
    assert routes.choose(PLACE, None) == Route(MASTER)


def test_a_slave_that_fails_is_left_alone_for_a_while(clock: Clock) -> None:
    routes = routes_to(BrokerEntry(MASTER, SLAVES), clock)
    routes.failed(PLACE, Route(ONE, 1))
    assert routes.choose(PLACE, 1) == Route(MASTER)  # though the master, which does not know, names it
    clock.now += SHUN_S
    assert routes.choose(PLACE, 1) == Route(ONE, 1)
    routes.failed(PLACE, Route(MASTER))  # says nothing about slaves
    assert routes.choose(PLACE, 1) == Route(ONE, 1)


def test_without_a_master_another_slave_is_tried_and_the_only_one_again(clock: Clock) -> None:
    routes = routes_to(BrokerEntry(None, SLAVES), clock)
    routes.failed(PLACE, Route(ONE, 1))
    assert routes.choose(PLACE, None) == Route(TWO, 2)
    routes.failed(PLACE, Route(TWO, 2))
    assert routes.choose(PLACE, None) == Route(ONE, 1)
    clock.now += SHUN_S
    routes.set_brokers({0: BrokerEntry(None, {1: ONE})})
    routes.failed(PLACE, Route(ONE, 1))
    assert routes.choose(PLACE, None) == Route(ONE, 1)


@pytest.mark.parametrize(
    ("route", "master", "offset", "is_filtered", "is_final"),
    [
        (Route(MASTER), MASTER, 50, False, True),
        (Route(MASTER), MASTER, 150, False, True),
        (Route(ONE, 1), MASTER, 150, False, False),  # the slave keeps less: the master may have it
        (Route(ONE, 1), MASTER, 150, True, True),
        (Route(ONE, 1), MASTER, 50, False, False),
        (Route(ONE, 1), None, 150, False, True),  # nobody else can have it now
        (Route(ONE, 1), None, 50, False, False),  # never backwards
        (Route(ONE, 1), None, 150, True, True),
    ],
)
def test_whose_word_moves_an_offset(
    route: Route, master: BrokerUrl | None, offset: int, *, is_filtered: bool, is_final: bool
) -> None:
    routes = routes_to(BrokerEntry(master, SLAVES))
    assert routes.is_final(PLACE, route, moved(offset, is_filtered=is_filtered), 100) is is_final


def test_reads_go_to_the_master_and_to_a_slave_only_while_it_is_away() -> None:
    brokers = {
        0: BrokerEntry(BrokerUrl("a", 1), {3: BrokerUrl("b", 2)}),
        1: BrokerEntry(None, {5: BrokerUrl("d", 4), 3: BrokerUrl("c", 3)}),
    }
    assert plan_routes(brokers) == {0: BrokerUrl("a", 1), 1: BrokerUrl("c", 3)}
