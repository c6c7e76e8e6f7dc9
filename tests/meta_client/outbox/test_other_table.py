"""Another decision table takes the place of the one that decided a relay's batches: what was decided is committed, and
nothing more is moved before an operator says that it may."""

import json
import time

import pytest

from meta_client.outbox.relay import CHECK_S
from meta_client.outbox.relay_metrics import ready
from meta_client.transactions.databases import Change, init
from meta_client.transactions.table import KEEP_S
from tests.fixtures.forked import run_metaq, start_module
from tests.meta_client.outbox.conftest import OutboxWorld, drain
from tests.meta_client.outbox.test_command import outbox
from tests.meta_client.outbox.test_deferred import state as relay_state
from tests.meta_client.transactions.test_restored import raise_generation

ANOTHER = {
    "both": ("DROP TABLE metaq_decision", "DROP TABLE metaq_decision_table"),
    "identity": ("DROP TABLE metaq_decision_table",),
    "emptied": ("DELETE FROM metaq_decision", "DELETE FROM metaq_decision_table"),
}


def die(on: OutboxWorld, step: str) -> None:
    """Let a relay kill itself when its batch reaches *step*."""
    assert start_module("tests.meta_client.outbox.relaying", on.url, on.world.zookeeper, step).wait() == -9


@pytest.mark.parametrize("how", ANOTHER)
def test_a_batch_that_a_table_decided_which_is_gone_is_committed(outboxed: OutboxWorld, how: str) -> None:
    """A relay dies before its broker's COMMIT; a migration makes both tables again. The new one knows nothing of it."""
    world = outboxed.world
    outboxed.work(*range(20))
    raise_generation(world)
    die(outboxed, "DECIDED")
    for statement in ANOTHER[how]:
        world.deciding.execute(statement)
    assert init(outboxed.url, KEEP_S) != world.deciding.identity
    assert (len(world.prepared()), world.messages()) == (1, [])
    relay = outboxed.relay()
    deadline = time.monotonic() + 30
    while world.messages() != list(range(20)):
        assert time.monotonic() < deadline, relay.trouble
        relay.run_pass()
    assert (relay.counts.moved, relay.trouble, world.prepared()) == (0, None, [])
    outboxed.work(*range(20, 30))
    drain(relay)
    assert (relay.counts.moved, outboxed.status().waiting, world.messages()) == (0, 10, list(range(20)))
    assert "metaq outbox adopt" in str(relay.trouble)
    assert ready(relay).why_not == (relay.trouble,)
    status, said, _ = outbox(outboxed, "list")
    assert (status, said.splitlines()[-1]) == (1, relay.trouble)
    assert json.loads(outbox(outboxed, "list", "--json")[1])["trouble"] == relay.trouble
    zk = ("--zk", world.zookeeper)
    assert outbox(outboxed, "adopt", *zk)[0] == 130
    assert outbox(outboxed, "adopt", *zk, "--yes")[:2] == (
        0,
        "relays go on; 1 branches of batches before are committed\n",
    )
    assert outbox(outboxed, "list")[0] == 0
    drain(relay)
    assert (relay.counts.moved, relay.trouble) == (10, None)
    world.check(list(range(30)))


def test_a_batch_that_was_not_decided_is_moved_again_and_its_branch_left_alone(outboxed: OutboxWorld) -> None:
    """Its rows are there: no relay may commit it, whatever table decides."""
    world = outboxed.world
    outboxed.work(1)
    drain(outboxed.relay())
    outboxed.work(2, 3)
    die(outboxed, "RECORDED")
    for statement in ANOTHER["both"]:
        world.deciding.execute(statement)
    init(outboxed.url, KEEP_S)
    relay = outboxed.relay()
    drain(relay)
    assert (world.messages(), len(world.prepared())) == ([1], 1)
    assert outbox(outboxed, "adopt", "--zk", world.zookeeper, "--yes")[0] == 0
    drain(relay)
    world.check([1, 2, 3])
    assert len(world.prepared()) == 1


def test_a_relay_that_runs_all_the_time_goes_on_once_it_may(outboxed: OutboxWorld) -> None:
    """Its connection knows the table that is gone."""
    world, zk = outboxed.world, ("--zk", outboxed.world.zookeeper)
    relay = outboxed.relay()
    outboxed.work(1)
    drain(relay)
    for statement in ANOTHER["both"]:
        world.deciding.execute(statement)
    identity = init(outboxed.url, KEEP_S)
    outboxed.work(2)
    drain(relay)
    assert "decided its last batch" in str(relay.trouble)
    assert outbox(outboxed, "adopt", *zk, "--yes")[0] == 0
    for number in (3, 4):
        deadline = time.monotonic() + 30
        while outboxed.status().waiting:
            assert time.monotonic() < deadline, relay.trouble
            relay.run_pass()
        outboxed.work(number)
    drain(relay)
    world.check([1, 2, 3, 4])
    (branch,) = relay_state(outboxed).batches
    assert branch.table_id == identity.name.table_id


def test_a_copy_moves_nothing_and_leaves_the_original_alone(on_postgres: OutboxWorld) -> None:
    """A copy for staging, made independent, beside the original's brokers: what waits there is the original's."""
    world = on_postgres.world
    on_postgres.work(1)
    drain(on_postgres.relay())
    on_postgres.work(2, 3)
    init(on_postgres.url, KEEP_S, Change.COPIED)
    relay = on_postgres.relay()
    drain(relay)
    assert "or it is a copy" in str(relay.trouble)
    assert (relay.counts.moved, world.messages()) == (0, [1])


def test_a_broker_that_is_away_keeps_its_branch(on_postgres: OutboxWorld) -> None:
    world = on_postgres.world
    on_postgres.work(1)
    die(on_postgres, "DECIDED")
    (broker,) = world.brokers
    broker.kill()
    for statement in ANOTHER["both"]:
        world.deciding.execute(statement)
    init(on_postgres.url, KEEP_S)
    status, _, said = outbox(on_postgres, "adopt", "--zk", world.zookeeper, "--yes")
    assert (status, "broker 0" in said) == (2, True)
    broker.start()
    with on_postgres.relay():
        world.check([1])


@pytest.mark.parametrize("outboxed", ["postgres"], indirect=True)
def test_what_a_relay_decided_is_committed_before_resolvers_presume_again(outboxed: OutboxWorld) -> None:
    """Rows of decisions are lost while no relay runs, and an operator declares the table restored."""
    world = outboxed.world
    outboxed.work(*range(5))
    raise_generation(world)
    die(outboxed, "DECIDED")
    world.deciding.execute("TRUNCATE metaq_decision")
    words = ("--database", outboxed.url, "--zk", world.zookeeper)
    accepted = run_metaq("txn", "init", "--restored", "--yes", *words)
    assert accepted.returncode == 0, accepted.stderr
    assert run_metaq("txn", "resolver", "--once", "--age", "0.2", *words).returncode == 0
    assert (world.messages(), world.prepared()) == (list(range(5)), [])


def test_a_table_without_its_identity(outboxed: OutboxWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A clean-up deletes the row that says which table it is: one error with its remedy, and no stack trace."""
    world = outboxed.world
    relay = outboxed.relay()
    outboxed.work(1)
    drain(relay)
    world.deciding.execute("DELETE FROM metaq_decision_table")
    outboxed.work(2)
    for one in (relay, outboxed.relay()):
        time.sleep(CHECK_S)
        for _ in range(3):
            assert not one.run_pass()
            assert "metaq_decision_table is empty; run `metaq txn init --database URL`" in str(one.trouble)
    status, said, _ = outbox(outboxed, "list")
    assert (status, said.splitlines()[-1]) == (1, relay.trouble)
    assert (world.messages(), caplog.text.count("Traceback"), caplog.text.count("outbox not moved")) == ([1], 0, 2)
    init(outboxed.url, KEEP_S)
    assert outbox(outboxed, "adopt", "--zk", world.zookeeper, "--yes")[0] == 0
    deadline = time.monotonic() + 30
    while outboxed.status().waiting:
        assert time.monotonic() < deadline, relay.trouble
        relay.run_pass()
    world.check([1, 2])
