"""A Spark query that decided a batch and never starts again: a resolver, and the doctor, end it as was decided."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meta_client.batches.decision import OVER, BatchDecision, BatchOutcome, Decisions
from meta_client.batches.finishing import BatchFinisher
from meta_client.batches.names import QUALIFIER, BatchName, BranchName, attempt_name, branch_at
from meta_client.client import Client
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.requests import TransactionVerb
from meta_client.transactions.branches import OpenBranches
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq
from tests.meta_client.coordinator.conftest import STEADY
from tests.meta_client.transactions.conftest import make_sqlite

_numbers = itertools.count(1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """Two brokers, and what attempts of tasks have prepared there."""

    def __init__(self, zookeeper: str, client: Client, query: str) -> None:
        self.zookeeper = zookeeper
        self.client = client
        self.query = query
        self.clock = Clock()
        verbs = XaVerbs(client.topology, client.connections, "test")
        self.verbs = verbs
        self.finisher = BatchFinisher(client.session, verbs, 3.0, self.clock)
        self.before = Counter(self._stored())

    def prepare(self, batch: int, broker_id: int, payload: str) -> BranchName:
        attempt, name = attempt_name(0, 0), BatchName(self.query, batch)
        branches = OpenBranches(self.verbs, name.gtrid, 60, lambda _, at: branch_at(attempt, at).key(name))
        producer = self.client.producer()
        producer.enter(branches)
        producer.send_async("orders", payload.encode(), partition=f"{broker_id}-0")
        assert branches.prepare() == (broker_id,)
        producer.leave()
        return branch_at(attempt, broker_id)

    def roll_back(self, batch: int, branch: BranchName) -> None:
        key = branch.key(BatchName(self.query, batch))
        RemoteBranch(self.verbs, key, branch.broker_id).call(TransactionVerb.ROLLBACK)

    def decide(self, batch: int, *branches: BranchName) -> Decisions:
        decisions = Decisions(self.client.session, self.query)
        decisions.decide(BatchName(self.query, batch), branches)
        return decisions

    def prepared(self) -> set[str]:
        listing = self.verbs.list_prepared(QUALIFIER)
        assert not listing.failures
        return {key.xid.bqual.decode() for keys in listing.keys.values() for key in keys}

    def stored(self) -> Counter[str]:
        return Counter(self._stored()) - self.before

    def _stored(self) -> list[str]:
        return [message.payload.decode() for message in self.client.browse("orders")]

    def look(self) -> None:
        self.finisher.run_pass()
        self.clock.now += 3.0
        self.finisher.run_pass()


@pytest.fixture
def world(broker_pool: BrokerPool) -> Iterator[World]:
    with ExitStack() as opened:
        lent = opened.enter_context(broker_pool.lend(STEADY, STEADY))
        client = opened.enter_context(Client(lent.connect))
        yield World(lent.connect, client, f"query-{next(_numbers)}")


def test_outcomes() -> None:
    one, other = BranchName(0, "a"), BranchName(1, "a")
    decision = BatchDecision(3, (one,))
    assert decision.outcome_of(3, one) is BatchOutcome.COMMIT
    assert decision.outcome_of(3, other) is BatchOutcome.ROLLBACK
    assert decision.outcome_of(2, one) is BatchOutcome.ROLLBACK, "a batch was finished before the next was decided"
    assert decision.outcome_of(4, one) is BatchOutcome.OPEN
    assert BatchDecision(-1).outcome_of(0, one) is BatchOutcome.OPEN
    assert OVER.outcome_of(0, one) is BatchOutcome.ROLLBACK


def test_a_resolver_finishes_what_is_decided(world: World) -> None:
    decided = [world.prepare(0, 0, "first"), world.prepare(0, 1, "second")]
    world.prepare(0, 0, "another attempt of the first")
    later = world.prepare(1, 0, "not decided")
    decisions = world.decide(0, *decided)
    world.finisher.run_pass()
    assert (len(world.prepared()), world.stored()) == (4, Counter()), "its driver may be at work"
    world.look()
    assert world.stored() == Counter(["first", "second"])
    assert world.prepared() == {later.bqual}
    assert decisions.read().is_done
    assert world.finisher.counts == (1, 0)
    world.look()
    assert world.finisher.counts == (1, 0)
    # Its query returns, repeats the other batch, and decides for another attempt.
    again = world.prepare(1, 0, "decided")
    world.decide(1, again)
    world.look()
    assert world.stored() == Counter(["first", "second", "decided"])
    assert world.prepared() == set()
    assert decisions.read().is_done
    decisions.delete()


def test_a_resolver_rolls_back_what_a_write_that_is_over_has_left(world: World) -> None:
    """Its driver could not reach the broker, or the task was killed between PREPARE and its look at the node."""
    world.query = BatchName.once().query
    decisions = Decisions(world.client.session, world.query)
    decisions.begin()
    left = world.prepare(0, 0, "left")
    world.look()
    assert world.prepared() == {left.bqual}, "its driver may decide"
    decisions.delete()
    world.look()
    assert (world.prepared(), world.stored()) == (set(), Counter())


def test_a_person_rolls_back_what_a_write_has_left_whose_program_was_killed(world: World) -> None:
    """By the commands of docs/spark.md: nobody else knows that it is over."""
    world.query = BatchName.once().query
    decisions = Decisions(world.client.session, world.query)
    decisions.begin()
    left = {world.prepare(0, 0, "left").bqual, world.prepare(0, 1, "left").bqual}
    world.look()
    assert world.prepared() == left

    def txn(*words: str) -> str:
        done = run_metaq("txn", *words, "--zk", world.zookeeper)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = [json.loads(line) for line in txn("list", "--qualifier", QUALIFIER, "--json").splitlines()]
    assert [row["sql"] for row in rows] == ["", ""], "no database knows of it"
    told = [json.loads(line) for line in txn("doctor", "--age", "0", "--json").splitlines()]
    assert [row["key"] for row in told if row["transaction"] == f"spark:{world.query}:0"] == [
        row["key"] for row in rows
    ]
    for row in rows:
        resolve = txn("show", row["key"]).partition("resolve ")[2]
        assert (
            "Spark's sink decides: metaq txn doctor tells how. It has not decided, and its program has ended:"
            in resolve
        )
        assert f"metaq txn rollback {row['key']} --broker {row['broker']}" in resolve
        assert "commit" not in resolve
        txn("rollback", row["key"], "--why", "its driver was killed", "--yes")
        txn("forget", row["key"], "--yes")
    assert (world.prepared(), world.stored()) == (set(), Counter())
    assert txn("list", "--qualifier", QUALIFIER, "--json") == ""
    decisions.delete()


def test_a_resolver_deletes_the_node_of_a_decided_write_that_nobody_can_repeat(world: World) -> None:
    world.query = BatchName.once().query
    Decisions(world.client.session, world.query).begin()
    decisions = world.decide(0, world.prepare(0, 0, "decided"))
    world.look()
    assert (world.prepared(), world.stored()) == (set(), Counter(["decided"]))
    assert decisions.read() == OVER


def test_what_cannot_be_finished_is_told_and_holds_nothing_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    session = world.client.session
    strange = f"{session.paths.root}/metaq/spark/strange-{world.query}"
    session.ensure(strange)
    session.write(strange, b'{"batch":0,"branches":[[0,"%s"]]}' % (b"x" * 200))
    wrong = f"{session.paths.root}/metaq/spark/wrong-{world.query}"
    session.ensure(wrong)
    session.write(wrong, b"no decision")
    gone = Decisions(session, f"gone-{world.query}")
    gone.decide(BatchName(f"gone-{world.query}", 0), (BranchName(0, "0.0.nobody.0"),))
    decisions = world.decide(0, world.prepare(0, 1, "whole"))
    world.look()
    assert decisions.read().is_done
    assert not gone.read().is_done
    assert world.finisher.counts.batches_finished == 1
    told = caplog.text
    assert "no decision" in told
    assert "not finished yet what=query strange" in told
    assert "not finished yet what=query gone" in told
    for path in (strange, wrong):
        session.delete(path)
    gone.delete()
    decisions.delete()


@pytest.mark.parametrize("applies", [False, True], ids=["resolver", "doctor"])
def test_the_commands(world: World, tmp_path: Path, applies: bool) -> None:
    decided, other = world.prepare(5, 0, "decided"), world.prepare(5, 1, "another attempt")
    late = world.prepare(6, 1, "not decided")
    decisions = world.decide(5, decided)

    def doctor(*words: str) -> dict[str, dict[str, object]]:
        done = run_metaq("txn", "doctor", "--zk", world.zookeeper, "--age", "0.2", "--json", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return {row["verdict"]: row for row in map(json.loads, done.stdout.splitlines())}

    told = doctor()
    assert set(told) == {"commit", "roll back", "at work"}
    assert f"the decision of Spark query {world.query} about batch 5" in str(told["commit"]["reason"])
    assert world.prepared() == {decided.bqual, other.bqual, late.bqual}
    if applies:
        doctor("--apply")
        assert world.prepared() == {late.bqual}
    url = make_sqlite(tmp_path).url
    done = run_metaq("txn", "resolver", "--database", url, "--zk", world.zookeeper, "--once", "--age", "0.2")
    assert done.returncode == 0, done.stderr
    assert "batches_finished=1" in done.stdout
    assert (world.prepared(), world.stored()) == ({late.bqual}, Counter(["decided"]))
    assert decisions.read().is_done
    world.roll_back(6, late)
    decisions.delete()
