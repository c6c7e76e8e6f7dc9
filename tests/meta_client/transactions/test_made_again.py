"""Both decision tables are dropped and made again under a service that runs: its connections and its resolver know the
old ones."""

from collections.abc import Callable
from contextlib import closing

import pytest

from meta_client.coordinator.errors import Unreachable
from meta_client.producer.xa_verbs import Listing, XaVerbs
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.databases import init
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import Resolver
from meta_client.transactions.table import KEEP_S, TableIdentity
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import start_module
from tests.meta_client.transactions.conftest import Deciding, World, running_world
from tests.meta_client.transactions.test_crashes import CRASHING, DRIVERS

AGAIN = {
    "dropped": ("DROP TABLE metaq_decision", "DROP TABLE metaq_decision_table"),
    "emptied": ("DELETE FROM metaq_decision", "DELETE FROM metaq_decision_table"),
}


def make_again(deciding: Deciding, how: str) -> TableIdentity:
    for statement in AGAIN[how]:
        deciding.execute(statement)
    deciding.identity = init(deciding.url, KEEP_S)
    return deciding.identity


@pytest.fixture(params=AGAIN)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class AskedForLong(Brokers):
    """Brokers that are listed while an operator works on the database."""

    def __init__(self, world: World, name: TableName, work: Callable[[], object]) -> None:
        super().__init__(XaVerbs(world.client.topology, world.client.connections, "test"), name)
        self._work = work

    def listed(self) -> Listing:
        self._work()
        return super().listed()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("notes", [True, False])
def test_a_resolver_from_before_rolls_nothing_back(
    deciding: Deciding, broker_pool: BrokerPool, how: str, when: str, notes: bool
) -> None:
    """A service has died, decided. Nor is the new table's generation below the old one's."""
    before = deciding.identity
    works = list[Callable[[], None]]()
    with running_world(deciding, broker_pool) as world:
        generations = Generations(world.client.session, before.name) if notes else None
        brokers = AskedForLong(world, before.name, lambda: works and works.pop()())
        resolver = Resolver(brokers, before.name, deciding.table, 0.0, generations=generations)
        resolver.run_pass()
        driver = next(driver for driver, kind in DRIVERS.items() if kind == deciding.kind)
        place = deciding.url.removeprefix("sqlite:///")
        assert start_module(CRASHING, driver, place, world.zookeeper, "7", "DECIDED").wait() == -9

        def make_another() -> None:
            identity = make_again(deciding, how)
            deciding.execute("UPDATE metaq_decision_table SET generation = 9")
            assert identity != before

        if when == "before":
            make_another()
        else:
            works.append(make_another)
        resolver.run_pass()
        deciding.identity = before
        assert (len(world.prepared()), resolver.counts.resolved_rolled_back) == (1, 0)
        assert "it has another decision table now" in str(resolver.unreachable)
        resolver.close()


def test_a_table_without_its_identity_proves_nothing(deciding: Deciding) -> None:
    with closing(deciding.table()) as table:
        deciding.execute("DELETE FROM metaq_decision_table")
        with pytest.raises(Unreachable, match=f"put its row back, of table_id {deciding.identity.name.table_id}, or"):
            table.generation()
