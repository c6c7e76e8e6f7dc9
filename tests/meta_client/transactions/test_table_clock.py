"""A database's clock that is set: rows of rollbacks stay until it has gone right for long enough."""

import time
from contextlib import closing

import pytest

from meta_client.net.identity import new_session_id
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions import resolver, table_clock
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.resolver import Resolver
from meta_client.transactions.table_clock import CONFIRM_S, STEP_S, TableClock
from tests.fixtures.zookeeper_tree import wait_until
from tests.meta_client.transactions.conftest import Deciding, World

HOUR_S = 3600.0


def test_a_clock_is_believed_once_it_has_held() -> None:
    clock, steady_s, set_by_s = TableClock(), 0.0, 0.0

    def after(seconds: float, by_s: float = 0.0) -> bool:
        nonlocal steady_s, set_by_s
        steady_s, set_by_s = steady_s + seconds, set_by_s + by_s
        return clock.is_confirmed(1e9 + steady_s + set_by_s, steady_s)

    assert not after(0)
    assert not after(CONFIRM_S - 1)
    assert after(1)
    assert after(60, STEP_S), "slewed"
    assert not after(60, 25 * HOUR_S)
    assert not after(CONFIRM_S - 1)
    assert not after(1, -25 * HOUR_S), "it was wrong meanwhile"
    assert not after(CONFIRM_S - 1)
    assert after(1)


def test_every_database_tells_its_clock(deciding: Deciding) -> None:
    with closing(deciding.table()) as table:
        assert abs(table.clock_s() - time.time()) < 60


def test_a_resolver_deletes_nothing_by_a_clock_that_was_set(lite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that stands between PREPARE and its row could still insert it, once the clock is right again."""
    monkeypatch.setattr(table_clock, "CONFIRM_S", 0.5)
    monkeypatch.setattr(resolver, "SWEEP_S", 0.0)
    client, deciding = lite_world.client, lite_world.deciding
    name, set_by_s = deciding.identity.name, 0.0
    verbs = XaVerbs(client.topology, client.connections, new_session_id())
    resolving = Resolver(Brokers(verbs, name), name, deciding.table, clock=lambda: time.monotonic() + set_by_s)

    def is_deleted() -> bool:
        resolving.run_pass()
        return not deciding.rows()

    with closing(deciding.table()) as table:
        table.resolve(name.new_gtrid())
    assert not is_deleted()
    time.sleep(0.6)
    set_by_s = 25 * HOUR_S
    deciding.execute("UPDATE metaq_decision SET decided_at = 0")  # as it looks by that clock
    assert not is_deleted()
    wait_until(is_deleted)
    resolving.close()
