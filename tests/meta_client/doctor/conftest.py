"""The doctor as its command, and the worlds of both kinds of transactions."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from meta_client.transactions import CommitStep
from tests.fixtures.forked import run_metaq
from tests.meta_client.coordinator.conftest import world as xa_world
from tests.meta_client.transactions.conftest import World, do, lite_world, maria_world, world

__all__ = ["lite_world", "maria_world", "world", "xa_world"]

AGE = "0.3"


@dataclass
class Told:
    """Output of one run: a row a branch, and a row a side that could not be asked."""

    status: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    stderr: str = ""

    def at(self, place: str) -> dict[str, Any]:
        (row,) = (row for row in self.rows if row["place"] == place)
        return row

    @property
    def verdicts(self) -> list[str]:
        return sorted(row["verdict"] for row in self.rows)


Doctor = Callable[..., Told]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run `metaq txn doctor` on a cluster, with some more words."""
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def run(zookeeper: str, *words: str, age: str = AGE) -> Told:
        done = run_metaq("txn", "doctor", "--zk", zookeeper, "--age", age, "--json", *words)
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        told = Told(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)
        assert (told.status == 1) is any(row["needs_person"] for row in told.rows)
        return told

    return run


@contextmanager
def in_flight(world: World, at: CommitStep = CommitStep.RECORDED) -> Iterator[threading.Event]:
    """A transaction of a live service is at that step until the event is set, or the block is left."""
    asked, goes_on = threading.Event(), threading.Event()

    def hold(step: CommitStep, gtrid: str) -> None:
        if step is at:
            asked.set()
            assert goes_on.wait(60)

    def work() -> None:
        with (
            world.open_client(observer=hold, resolves=False) as client,
            closing(world.deciding.connect()) as connection,
            client.transaction(connection, wait=True) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert asked.wait(60)
        yield goes_on
    finally:
        goes_on.set()
        worker.join()
