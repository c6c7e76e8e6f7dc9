"""The doctor as its command, and the worlds of both kinds of transactions."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fixtures.forked import run_metaq
from tests.meta_client.coordinator.conftest import world as xa_world
from tests.meta_client.transactions.conftest import lite_world, maria_world, world

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
