"""Every transaction that came apart has its commands, or is said to be beyond them."""

import shlex

import pytest

from meta_client.transactions.names import TableName
from spark_jobs.reconciliation.apart import Apart, BranchSide, Content, MarkerSide
from spark_jobs.reconciliation.remedies import Remedy, remedy_for
from spark_jobs.reconciliation.text import lines

TABLE = TableName("0" * 32)
NAME = f"{TABLE.qualifier}-{'a' * 22}"
ROW = MarkerSide("public.sold.gtrid", NAME, 1)
PREPARED = BranchSide(0, "in doubt", 64, 128, (Content("orders", 1, 2, None),))
EARLIER = BranchSide(0, "in doubt", 64, 128, (), is_of_earlier_epoch=True)
PUBLISHED = BranchSide(1, "committed", 64, 128, (Content("two words", 3, 2, 40),))


def remedy(one: Apart, *, has_markers: bool = True, is_newest: bool = True) -> Remedy:
    found = remedy_for(one, TABLE, has_markers=has_markers, is_newest=is_newest)
    assert found.commands or found.dead_end
    for command in found.commands:
        assert shlex.split(command)[0] in ("metaq", "psql")
    return found


@pytest.mark.parametrize(
    ("one", "has_markers", "is_newest", "verb"),
    [
        (Apart("in doubt", NAME, decision="commit", branches=(PREPARED,)), True, False, "resolver"),
        (Apart("in doubt", NAME, decision="rollback", branches=(PREPARED,)), True, False, "resolver"),
        (Apart("in doubt", NAME, branches=(PREPARED,)), True, True, "resolver"),
        (Apart("in doubt", NAME, branches=(PREPARED,), rows=(ROW,)), True, True, "commit"),
        (Apart("in doubt", NAME, branches=(PREPARED,), rows=(ROW,)), True, False, "commit"),
        (Apart("in doubt", NAME, branches=(PREPARED, PUBLISHED)), True, False, "commit"),
        (Apart("in doubt", NAME, branches=(EARLIER,)), True, True, "rollback"),
        (Apart("in doubt", NAME, branches=(PREPARED,)), True, False, "rollback"),
        (Apart("in doubt", NAME, branches=(PREPARED,)), False, False, "rollback"),
    ],
)
def test_what_ends_a_branch_in_doubt(one: Apart, has_markers: bool, is_newest: bool, verb: str) -> None:
    found = remedy(one, has_markers=has_markers, is_newest=is_newest)
    words = shlex.split(found.commands[0])
    assert words[2] == verb
    assert found.needs_person is (verb != "resolver")
    if verb != "resolver":
        assert words[3:6] == [str(TABLE.key(NAME, 0)), "--broker", "0"]
        assert [shlex.split(command)[2] for command in found.commands] == [verb, "forget"]


def test_what_no_command_brings_back() -> None:
    gone = remedy(Apart("missing", NAME, absent=(0,), branches=(PUBLISHED,), rows=(ROW,)))
    assert "gone from broker 0" in gone.reason
    assert "send them again from the rows" in gone.dead_end
    assert [shlex.split(command) for command in gone.commands] == [
        ["psql", "$DATABASE_URL", "-c", f"""SELECT * FROM "public"."sold" WHERE "gtrid" = '{NAME}'"""],
        ["metaq", "consume", "two words", "--partition", "1-3", "--from", "40", "--count", "2", "--json"],
    ]
    by_id = remedy(Apart("missing", "id 7", rows=(MarkerSide("sent.id", "7", 1, is_message_id=True),)))
    assert by_id.commands == ("""psql "$DATABASE_URL" -c 'SELECT * FROM "sent" WHERE "id" = 7'""",)
    assert "nothing takes them back" in remedy(Apart("orphan", NAME, branches=(PUBLISHED,))).dead_end
    undone = BranchSide(0, "rolled back", 1, 2)
    assert "send it again" in remedy(Apart("mixed", NAME, branches=(undone,), rows=(ROW,))).dead_end
    assert "not taken back" in remedy(Apart("mixed", NAME, branches=(undone, PUBLISHED))).dead_end
    assert remedy(Apart("duplicate", NAME, branches=(PUBLISHED, PUBLISHED))).dead_end


def test_names_of_strangers_are_no_commands() -> None:
    """A column, a value and a topic may be anything."""
    evil = MarkerSide('a".b;--.c', "x'; DROP TABLE sold; --", 1)
    (query,) = remedy(Apart("missing", NAME, rows=(evil,))).commands
    words = shlex.split(query)
    quoted = r'"a""".' + '"b;--"'
    assert words[3] == f"""SELECT * FROM {quoted} WHERE "c" = 'x''; DROP TABLE sold; --'"""
    topic = BranchSide(0, "committed", 1, 2, (Content("$(rm -r /)\x1b[2J", 0, 1, 0),))
    (command,) = remedy(Apart("orphan", NAME, branches=(topic,))).commands
    assert shlex.split(command)[2] == "$(rm -r /)\x1b[2J"
    found = {
        "database": {"place": "p", "wal_lsn": "0/1", "is_restored": None, "generation": 1, "noted": None},
        "brokers": [],
        "brokers_not_given": [2],
        "transactions": [],
        "not_listed": {"orphan": 3},
        "consumers": [{"group": "\x1b[2J", "topic": "t", "partition": "0-0", "offset": 9, "end": 5, "state": "beyond"}],
        "accounts": [{"what": "branches", "counted": 1, "expected": 2}],
        "refused": ["r"],
        "sentence": "s",
        "then": [],
    }
    told = list(lines(found))
    assert not any("\x1b" in line for line in told)
    assert "branches: 1 DIFFERS FROM 2" in told
    assert "3 more orphan: --limit N lists them" in told
    assert any("NOT READ: broker 2" in line for line in told)
