"""Hundreds of branches in doubt at two brokers: a pass decides and ends them together, and none hides another."""

from contextlib import closing
from typing import Any

import pytest

from journal.records.heuristics import HeuristicDecision
from journal.records.xid import XaKey, parse_key
from meta_client.operations.branches import OnlineBranches
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions import due_decisions
from meta_client.transactions.brokers import BranchPlace, Brokers
from meta_client.transactions.resolver import Resolver
from meta_client.transactions.statements import SqlTable
from meta_client.transactions.table import DecisionTable
from tests.fixtures.broker_pool import BrokerPool
from tests.meta_client.transactions.conftest import Deciding, World, do, running_world

TOPICS = {0: "orders", 1: "bills"}


def prepare(world: World, numbers: range) -> dict[int, str]:
    """Leave transactions in doubt at both brokers, as a service that died; every third one has its row."""
    name, gtrids = world.deciding.identity.name, dict[int, str]()
    for number in numbers:
        gtrid = gtrids[number] = name.new_gtrid()
        for broker_id, topic in TOPICS.items():
            producer = world.client.producer(qualifier=name.qualifier)
            producer.tpc_begin(name.key(gtrid, broker_id).xid, topics=(topic,))
            producer.send_async(topic, str(number).encode())
            producer.tpc_prepare()
    rows = ", ".join(f"('{gtrids[number]}', 'commit', '0,1')" for number in numbers if number % 3 == 0)
    world.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES {rows}")
    return gtrids


def resolver_of(world: World, statements: list[str] | None = None) -> Resolver:
    name = world.deciding.identity.name

    def open_table() -> DecisionTable:
        table = world.deciding.table()
        if statements is not None:
            assert isinstance(table, SqlTable)
            execute = table._execute

            def counted(statement: str, *how: Any) -> Any:
                statements.append(statement)
                return execute(statement, *how)

            vars(table)["_execute"] = counted
        return table

    brokers = Brokers(XaVerbs(world.client.topology, world.client.connections, "test"), name)
    return Resolver(brokers, name, open_table, age_s=0.0)


def prepared(world: World) -> set[BranchPlace]:
    listing = OnlineBranches(world.client).keys(world.deciding.identity.name.qualifier)
    return {(key.xid.gtrid.decode(), broker_id) for broker_id, keys in listing.items() for key in keys}


def test_a_pass_ends_hundreds_with_few_statements(deciding: Deciding, broker_pool: BrokerPool) -> None:
    with running_world(deciding, broker_pool, brokers=2) as world:
        gtrids, statements = prepare(world, range(300)), list[str]()
        with closing(resolver_of(world, statements)) as resolver:
            resolver.run_pass()
        assert prepared(world) == set()
        for topic in TOPICS.values():
            assert world.messages(topic) == list(range(0, 300, 3))
        assert (resolver.counts.resolved_committed, resolver.counts.resolved_rolled_back) == (200, 400)
        assert deciding.rows() == {
            gtrid: "commit" if number % 3 == 0 else "rollback" for number, gtrid in gtrids.items()
        }
        assert len(statements) < 50, statements


def test_what_one_branch_meets_keeps_no_other_from_its_end(
    deciding: Deciding, broker_pool: BrokerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row in flight, branches that an operator ended, alike and otherwise, and a broker that is killed."""
    monkeypatch.setattr(due_decisions, "SOME", 4)
    with running_world(deciding, broker_pool, brokers=2) as world, closing(deciding.connect()) as living:
        gtrids, name = prepare(world, range(30)), deciding.identity.name
        by_hand = OnlineBranches(world.client)
        for number, decision in (
            (0, HeuristicDecision.COMMIT),  # as its row says
            (1, HeuristicDecision.ROLLBACK),  # as it is decided
            (3, HeuristicDecision.ROLLBACK),
            (4, HeuristicDecision.COMMIT),
        ):
            by_hand.end_heuristically(name.key(gtrids[number], 0), 0, decision, "ann", "test")
        in_flight = gtrids[5]
        if deciding.kind != "sqlite":  # where the whole file would be locked
            do(living, f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{in_flight}', 'commit', '0,1')")
        world.brokers[1].kill()
        with closing(resolver_of(world)) as resolver:
            resolver.run_pass()
            left = {(gtrids[number], 0) for number in (3, 4)}
            locked = {(in_flight, 0)} if deciding.kind != "sqlite" else set()
            assert prepared(world) == left | locked
            living.rollback()
            world.brokers[1].start()
            while prepared(world) != left:
                resolver.run_pass()
            assert resolver.counts.hazards == 2
        kept = {key.xid.gtrid.decode() for key in map(_key, by_hand.findings())}
        assert kept == {gtrids[3], gtrids[4]}
        assert world.messages("bills") == list(range(0, 30, 3))
        assert world.messages("orders") == sorted({*range(0, 30, 3), 4} - {3})
        for number in (3, 4):
            by_hand.forget(name.key(gtrids[number], 0), 0)


def _key(report: dict[str, Any]) -> XaKey:

    key = parse_key(report["key"])
    assert isinstance(key, XaKey)
    return key
