"""Doctors beside each other, beside resolvers, and beside services at work; and what changes while one looks."""

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import pytest

from meta_client.doctor import sources
from meta_client.doctor.applier import apply, verbs_of
from meta_client.doctor.cases import Case, cases_of
from meta_client.doctor.evidence import problems
from meta_client.doctor.sources import gather
from meta_client.doctor.verdicts import Verdict
from meta_client.transactions import CommitStep
from tests.crash.test_decision_row import resolvers
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_metaq
from tests.meta_client.doctor.conftest import Doctor, Told
from tests.meta_client.doctor.test_rows import driver_of, kill_at
from tests.meta_client.transactions.conftest import World, do, make, running_world

THREADS = 16


@pytest.fixture(params=["postgres", "mariadb"])
def served(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    with running_world(make(request.param, request), broker_pool) as world:
        yield world


@pytest.mark.parametrize("more", [0, 1])
def test_a_table_with_more_rows_than_are_looked_at(served: World, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(sources, "ROWS_MAX", 3)
    for _ in range(3 + more):
        gtrid = served.deciding.identity.name.new_gtrid()
        row = f"('{gtrid}', 'rollback', '', 'a hazard')"
        served.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers, hazard) VALUES {row}")
    found = gather(served.client, [served.deciding.url], [], 0.1, lambda text: nullcontext())
    assert len(found.databases[0].rows) == 3
    said = [reason for place, reason in problems(found) if "decision table" in place]
    assert said == ["it has more than 3 rows to end, of which not all were looked at"] * more


def test_doctors_at_once(served: World, doctor: Doctor, tmp_path: Path) -> None:
    """Of services killed at each step, one of them ended by a person already, as decided: nobody is told of any."""
    world, count = served, 3
    for number, step in enumerate(("PREPARED", "RECORDED", "DECIDED", "COMMIT_SENT", "DECIDED")):
        kill_at(world, driver_of(world), number, step)
    given = ("--zk", world.zookeeper, "--database", world.deciding.url)
    by_hand = next(row for row in doctor(*given[1:]).rows if row["decision"] == "commit")
    words = ("txn", "commit", by_hand["key"], "--why", "the row", "--yes", *given[:2])
    assert run_metaq(*words).returncode == 0
    with ExitStack() as stack:
        files = [stack.enter_context((tmp_path / f"doctor-{number}").open("w+b")) for number in range(count)]
        said = stack.enter_context((tmp_path / "said").open("w+b"))  # steps that take longer than a second, too
        looking = ("txn", "doctor", *given, "--age", "0.3", "--apply", "--json")
        running = [start_metaq(looking, stdin=file, stdout=file, stderr=said) for file in files]
        assert [one.wait(60) for one in running] == [0] * count, (tmp_path / "said").read_text()
    rows = [json.loads(line) for file in files for line in Path(file.name).read_text().splitlines()]
    assert not any(row["needs_person"] for row in rows)
    assert not world.prepared()
    world.check([2, 3, 4])
    assert doctor(*given[1:]).rows == []


@pytest.mark.timeout(600)
def test_doctors_beside_resolvers_and_services(served: World, doctor: Doctor, tmp_path: Path) -> None:
    """Of healthy transactions nothing is told to a person at any age, and at the age of resolvers none is ended."""
    world, numbers, ended, lock = served, itertools.count(), threading.Event(), threading.Lock()

    def next_number() -> int:
        with lock:
            return next(numbers)

    def work() -> int:
        with closing(world.deciding.connect()) as connection:
            for done in itertools.count():
                if ended.is_set():
                    return done
                world.work(next_number(), connection=connection)
        raise AssertionError

    found: list[Told] = []
    with resolvers(world, tmp_path) as logs, ThreadPoolExecutor(THREADS) as pool:
        working = [pool.submit(work) for _ in range(THREADS)]
        try:
            for words, age in (((), "0.02"), (("--apply",), "3")) * 2:
                found.append(doctor(world.zookeeper, "--database", world.deciding.url, *words, age=age))
        finally:
            ended.set()
        total = sum(one.result() for one in working)
    assert [row for told in found for row in told.rows if row["needs_person"]] == []
    assert {row["done"] for told in found for row in told.rows} <= {None}
    world.wait_quiet()
    world.check(list(range(total)))
    assert "rollback" not in world.deciding.rows().values()
    assert [log.read_text() for log in logs] == ["", ""]


def looked(world: World) -> Case:
    """The only case that a doctor sees."""
    found = gather(world.client, [world.deciding.url], [], 0.1, lambda what: nullcontext())
    (case,) = cases_of(found, 0, 0.1)
    return case


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "mariadb"])
def test_a_row_is_written_between_look_and_action(
    request: pytest.FixtureRequest, kind: str, broker_pool: BrokerPool
) -> None:
    """The transaction lives, is left alone, and is not told to a person."""
    at = {step: (threading.Event(), threading.Event()) for step in (CommitStep.PREPARED, CommitStep.RECORDED)}

    def hold(step: CommitStep, gtrid: str) -> None:
        if step in at:
            reached, goes_on = at[step]
            reached.set()
            assert goes_on.wait(60)

    def work() -> None:
        with (
            world.open_client(observer=hold, resolves=False) as client,
            closing(world.deciding.connect()) as connection,
            client.transaction(connection, wait=True) as transaction,
        ):
            transaction.send("orders", b"1")
            if kind != "sqlite":
                do(connection, "INSERT INTO numbers VALUES (1)")

    with running_world(make(kind, request), broker_pool) as world:
        worker = threading.Thread(target=work)
        worker.start()
        try:
            assert at[CommitStep.PREPARED][0].wait(60)
            case = looked(world)
            # PostgreSQL's session has written to no decision table yet.
            assert {side.verdict for side in case.sides} == {Verdict.DECIDE}
            at[CommitStep.PREPARED][1].set()
            assert at[CommitStep.RECORDED][0].wait(60)
            (done,) = apply(case, verbs_of(world.client))
            assert (done.is_over, done.is_at_work) == (False, True), done.what
        finally:
            for _, goes_on in at.values():
                goes_on.set()
            worker.join()
        assert world.messages() == [1]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_row_is_deleted_between_look_and_action(served: World, by_hand: bool) -> None:
    """By a resolver, once every broker has committed; or by a person, and the branch is still prepared."""
    world = served
    kill_at(world, driver_of(world), 1, "DECIDED")
    case = looked(world)
    assert {side.verdict for side in case.sides} == {Verdict.COMMIT}
    if by_hand:
        world.deciding.execute("DELETE FROM metaq_decision WHERE gtrid LIKE 'mq1-%'")
    else:
        (_,) = apply(case, verbs_of(world.client))
        world.deciding.execute("DELETE FROM metaq_decision WHERE gtrid LIKE 'mq1-%'")
    (done,) = apply(case, verbs_of(world.client))
    assert done.is_over is not by_hand, done.what
    assert len(world.prepared()) == by_hand
    if by_hand:
        assert "look again" in done.what
        (done,) = apply(looked(world), verbs_of(world.client))
        assert (done.is_over, done.what) == (True, "rolled back")
