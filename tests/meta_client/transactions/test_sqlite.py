"""Decision tables in SQLite files, opened by their place: what is none is told, and kept as it is."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.transactions.databases import Change, init, table_at
from meta_client.transactions.errors import CopiedTable, NoDecisionTable
from meta_client.transactions.table import IDENTITY, TABLE, RowDecision
from tests.fixtures.forked import run_metaq

KEEP_S = 3600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A decision table of its own."""
    init(f"sqlite:///{tmp_path}/shop.db", KEEP_S)
    return tmp_path / "shop.db"


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)


def test_a_table_that_is_there_already_stays(path: Path) -> None:
    changed(path, f"INSERT INTO {TABLE} (gtrid, outcome, brokers) VALUES ('a', 'commit', '0')")
    with closing(table_at(f"sqlite:///{path}")) as table:
        before = table.identity
    for change in (Change.KEEP, Change.MOVED):
        assert init(f"sqlite:///{path}", KEEP_S, change) == before
    with closing(table_at(f"sqlite:///{path}")) as table:
        assert table.decided("a") is RowDecision.COMMIT


def test_what_is_no_database_is_unreachable(tmp_path: Path) -> None:
    text, missing = tmp_path / "text", tmp_path / "no" / "file"
    text.write_text("no database, though long enough to be looked at " * 100)
    before = text.read_bytes()
    for place, why in ((text, "file is not a database"), (missing, "is not there")):
        with pytest.raises(Unreachable, match=why):
            table_at(f"sqlite:///{place}")
    for place, why in ((text, "file is not a database"), (missing, "unable to open database file")):
        told = run_metaq("txn", "init", "--database", f"sqlite:///{place}")
        assert (told.returncode, "Traceback" in told.stderr, why in told.stderr) == (2, False, True), told.stderr
    assert text.read_bytes() == before
    with pytest.raises(CannotEnlist, match="names no file"):
        table_at("sqlite:///")


def test_a_table_that_was_emptied_or_copied_decides_nothing(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    with pytest.raises(CopiedTable, match="was made elsewhere"):
        table_at(f"sqlite:///{copy}")
    init(f"sqlite:///{copy}", KEEP_S, Change.COPIED)
    with closing(table_at(f"sqlite:///{copy}")) as table, closing(table_at(f"sqlite:///{path}")) as original:
        assert table.identity.name != original.identity.name
    changed(path, f"DELETE FROM {IDENTITY}")
    with pytest.raises(NoDecisionTable, match=f"{IDENTITY} is empty"):
        table_at(f"sqlite:///{path}")


def test_rows_that_cannot_be_read_are_hazards(path: Path) -> None:
    for gtrid, outcome, brokers in (("a", "commit", "0"), ("b", "maybe", "0"), ("c", "commit", "zero")):
        values = f"'{gtrid}', '{outcome}', '{brokers}'"
        changed(path, f"INSERT INTO {TABLE} (gtrid, outcome, brokers) VALUES ({values})")
    with closing(table_at(f"sqlite:///{path}")) as table:
        told = {one.gtrid: (one.outcome, one.brokers, one.hazard) for one in table.recorded(["a", "b", "c"])}
        with pytest.raises(Unreachable, match="says 'maybe', which is no outcome"):
            table.decided("b")
    assert told == {
        "a": (RowDecision.COMMIT, (0,), None),
        "b": (None, (0,), "its row says 'maybe', which is no outcome"),
        "c": (RowDecision.COMMIT, (), "its row names its brokers as 'zero', which can't be read"),
    }


@pytest.mark.parametrize("option", ["--moved", "--copied", "--restored"])
def test_what_cannot_be_undone_is_asked_first(path: Path, option: str) -> None:
    words = ("txn", "init", "--database", f"sqlite:///{path}")
    before = path.read_bytes()
    declined = run_metaq(*words, option, stdin="n\n")
    assert (declined.returncode, path.read_bytes()) == (1, before)
    assert "?" in declined.stderr
    both = run_metaq(*words, option, "--moved" if option != "--moved" else "--copied", "--yes")
    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)
    assert path.read_bytes() == before
