"""`metaq txn commit`, `rollback` and `forget` of many branches: files, repeats, kills, and what changed in between."""

import contextlib
import json
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal.records.xid import XaKey
from meta_client.operations.branches import OnlineBranches
from meta_client.producer.xa_verbs import XaVerbs
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.zookeeper_tree import wait_until
from tests.meta_client.transactions.conftest import World, make_sqlite, running_world
from zk.tree.broker_url import BrokerUrl

COUNT = 40
WHY = ("--why", "test")
pytestmark = pytest.mark.usefixtures("no_database")


@pytest.fixture
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.fixture
def world(tmp_path: Path, broker_pool: BrokerPool) -> Iterator[World]:
    with running_world(make_sqlite(tmp_path), broker_pool, brokers=2) as world:
        yield world


def prepare(world: World, count: int = COUNT) -> list[XaKey]:
    """Leave branches in doubt, every second one at broker 1."""
    name, keys = world.deciding.identity.name, list[XaKey]()
    for number in range(count):
        broker_id = number % 2
        producer = world.client.producer(qualifier=name.qualifier)
        keys.append(name.key(name.new_gtrid(), broker_id))
        producer.tpc_begin(keys[-1].xid, topics=("bills" if broker_id else "orders",))
        producer.send_async("bills" if broker_id else "orders", str(number).encode())
        producer.tpc_prepare()
    return keys


def metaq(world: World, *words: str, status: int = 0, said: str = "") -> subprocess.CompletedProcess[str]:
    done = run_metaq("txn", *words, "--zk", world.zookeeper, stdin=said)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def states(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    return {row["key"]: row["state"] for row in map(json.loads, done.stdout.splitlines())}


def listed(world: World) -> str:
    return metaq(world, "list", "--json").stdout


def prepared(world: World) -> set[str]:
    return {row["key"] for row in map(json.loads, listed(world).splitlines()) if row["state"] == "prepared"}


def test_a_listing_is_ended_and_a_repeat_does_nothing(world: World, tmp_path: Path) -> None:
    keys = prepare(world)
    names, file = set(map(str, keys)), tmp_path / "listed.json"
    file.write_text("".join(line + "\n" for line in listed(world).splitlines()[:-4]))
    chosen = {json.loads(line)["key"] for line in file.read_text().splitlines()}
    dry = metaq(world, "commit", "--from", str(file), *WHY, "--dry-run")
    assert (dry.stdout, prepared(world)) == (f"to_do={len(chosen)}\n", names)
    assert f"commit: {len(chosen)} branches, {len(chosen)} messages of " in dry.stderr
    assert (
        f"warning: {len(chosen)} branches have decision tables that were not looked at: give --database" in dry.stderr
    )
    declined = metaq(world, "commit", "--from", str(file), *WHY, status=1, said="n\n").stderr
    assert f"commit these {len(chosen)} branches: nothing undoes it. Go on?" in declined
    assert prepared(world) == names
    done = metaq(world, "commit", "--from", str(file), *WHY, "--json", said="y\n")
    assert states(done) == dict.fromkeys(chosen, "done")
    assert prepared(world) == names - chosen, "what is not listed stays"
    again = metaq(world, "commit", "--from", "-", *WHY, "--yes", said=file.read_text())
    assert again.stdout == f"done_before={len(chosen)}\n"
    against = metaq(world, "rollback", "--from", str(file), *WHY, "--yes", status=1).stdout
    assert f"refused={len(chosen)}" in against
    assert "it is heuristically committed, not prepared" in against
    forgotten = metaq(world, "forget", "--from", str(file), "--yes")
    assert forgotten.stdout == f"done={len(chosen)}\n"
    assert metaq(world, "forget", "--from", str(file), "--yes").stdout == f"done_before={len(chosen)}\n"
    left = sorted(names - chosen)
    assert metaq(world, "rollback", *left, *WHY, "--yes").stdout == f"done={len(left)}\n"
    assert len(world.messages("orders")) + len(world.messages("bills")) == len(chosen)
    metaq(world, "forget", *left, "--yes")


BAD = {
    "no JSON": ('{"key": ', "Input data was truncated"),
    "a list": ('{"key": ["a"], "broker": 0}', "Expected `str | null`"),
    "no broker": ('{"key": "XID:1:61:62:q"}', "it has no broker"),
    "a broker of text": ('{"key": "XID:1:61:62:q", "broker": "0"}', "Expected `int | null`"),
    "a negative broker": ('{"key": "XID:1:61:62:q", "broker": -1}', "-1 is no broker's id"),
    "no key": ('{"broker": 0}', "it has no key"),
    "another key": ('{"key": "TX:s:1", "broker": 0}', "is not <format id>_<base64 gtrid>_<base64 bqual>"),
    "a word": ("commit", "is not <format id>_<base64 gtrid>_<base64 bqual>"),
    "no text": ("\udcff", "can't decode byte 0xff"),
    "a long line": ("x" * 100_000, "a name of 100000 characters is longer than"),
    "deep": ('{"key":' + "[" * 100_000, "line 3: "),
    "a strange transaction": (
        '{"transactions": [{"kind": "in doubt", "name": "x", "verbs": [], "branches": [{"broker": 0, "state": '
        '"in doubt"}]}]}',
        "'x' is no transaction of a decision table",
    ),
    "no list of transactions": ('{"transactions": 7}', "Expected `array`"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_line_is_named_and_nothing_is_done(world: World, tmp_path: Path, how: str) -> None:
    line, said = BAD[how]
    (key, _), file = prepare(world, 2), tmp_path / "bad"
    text = f'{{"key": "{key}", "broker": 0}}\n\n{line}\n'
    file.write_bytes(text.encode(errors="surrogateescape"))
    refused = metaq(world, "rollback", "--from", str(file), *WHY, "--yes", status=2).stderr
    assert f"{file}, line 3: " in refused
    assert said in refused
    assert "or metaq reconcile; nothing was done" in refused
    assert (refused.count("\n"), len(refused) < 2000) == (1, True)
    assert len(prepared(world)) == 2
    metaq(world, "rollback", *prepared(world), *WHY, "--yes")
    metaq(world, "forget", "--from", "-", "--yes", said=listed(world))


def test_words_that_do_not_go_together(world: World) -> None:
    for words, said in (
        ((), "Missing argument 'BRANCH'"),
        (("1_YQ==_Yg==", "--from", "x"), "give branches, or --from FILE, not both"),
        (("--from", "-"), "--from - leaves no stdin for an answer"),
        (("--from", "/nowhere"), "/nowhere can't be read: No such file or directory"),
        (("1_YQ==_Yg==", "1_YQ==_Yw=="), "no branch in doubt is called 1_YQ==_Yg=="),
    ):
        assert said in metaq(world, "commit", *words, *WHY, status=2).stderr
    for option in ("--why", "--who"):
        how = (*WHY, option, "x" * 2000)
        refused = metaq(world, "commit", "--from", "-", *how, "--yes", status=2).stderr
        assert f"'{option}': it is not 1 to " in refused


def test_no_row_of_a_decision_table_is_acted_against(world: World) -> None:
    keys = prepare(world, 6)
    deciding = world.deciding
    (commits, rollbacks), none = (keys[:2], keys[2:4]), keys[4:]
    for some, outcome in ((commits, "commit"), (rollbacks, "rollback")):
        for key in some:
            row = f"('{key.xid.gtrid.decode()}', '{outcome}', '0')"
            deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES {row}")
    where = ("--database", deciding.url)
    names = list(map(str, keys))
    ended = metaq(world, "commit", *names, *WHY, "--yes", "--json", *where, status=1)
    assert states(ended) == {
        **dict.fromkeys(map(str, commits), "done"),
        **dict.fromkeys(map(str, rollbacks), "refused"),
        **dict.fromkeys(map(str, none), "done"),
    }
    assert "its row in the decision table says rollback" in ended.stdout
    assert "not looked at" not in ended.stderr
    for name in (str(rollbacks[0]), str(rollbacks[0].xid)):
        one = metaq(world, "commit", name, *WHY, "--yes", "--json", *where, status=1)
        assert states(one) == {str(rollbacks[0]): "refused"}
        assert "its row in the decision table says rollback; --despite-row ends it all the same" in one.stdout
        assert "not looked at" not in one.stderr
    as_the_database_has_them = [str(key.xid) for key in rollbacks]
    dry = metaq(world, "commit", *as_the_database_has_them, *WHY, "--dry-run", *where, status=1)
    assert ("refused=2" in dry.stdout, "not looked at" in dry.stderr) == (True, False), dry.stdout + dry.stderr
    told = json.dumps({"key": str(rollbacks[0]), "broker": 0, "decision": "rollback"})
    assert "refused=1" in metaq(world, "commit", "--from", "-", *WHY, "--yes", status=1, said=told).stdout
    metaq(world, "commit", str(rollbacks[0]), *WHY, "--yes", *where, "--despite-row")
    metaq(world, "rollback", str(rollbacks[1]), *WHY, "--yes", *where)
    metaq(world, "forget", *names, "--yes")


def test_sources_that_offer_another_verb(world: World) -> None:
    keys = prepare(world, 5)
    names = list(map(str, keys))
    gtrids = [key.xid.gtrid.decode() for key in keys]
    doctor = [
        {"key": names[0], "broker": 0, "verdict": "unknown", "decision": "unknown", "verbs": ["commit", "rollback"]},
        {"key": names[1], "broker": 1, "verdict": "at work", "decision": "open", "verbs": []},
        {"key": None, "broker": None, "place": "database shop", "verbs": []},
    ]
    apart = {
        "format": 1,
        "transactions": [
            _apart(gtrids[2], "in doubt", ["rollback", "forget"], (0, "in doubt")),
            _apart(gtrids[3], "in doubt", ["commit", "forget"], (1, "in doubt"), (0, "committed")),
            _apart(gtrids[4], "mixed", [], (0, "in doubt")),
        ],
    }
    text = "\n".join(map(json.dumps, [*doctor, apart]))
    done = metaq(world, "rollback", "--from", "-", *WHY, "--yes", "--json", said=text)
    assert states(done) == {names[0]: "done", names[1]: "left alone", names[2]: "done", names[3]: "left alone"}
    assert prepared(world) == {names[1], names[3], names[4]}
    assert metaq(world, "forget", "--from", "-", "--yes", "--json", said=json.dumps(apart), status=1).returncode == 1
    metaq(world, "rollback", names[1], names[3], names[4], *WHY, "--yes")
    metaq(world, "forget", *(name for name in names if name != names[2]), "--yes")


def test_what_the_doctor_tells_is_ended(world: World) -> None:
    """Of branches whose table nobody has given; those that --apply ends are left to it."""
    keys = prepare(world, 25)
    told = metaq(world, "doctor", "--age", "0.1", "--json", status=1).stdout
    shown = metaq(world, "doctor", "--age", "0.1", status=1).stdout
    assert (shown.count("  verdict "), "15 more are like those above: --json shows them" in shown) == (10, True), shown
    assert "metaq txn rollback --from FILE --why '...'" in shown
    certain = metaq(world, "doctor", "--age", "0.1", "--json", "--database", world.deciding.url).stdout
    assert metaq(world, "rollback", "--from", "-", *WHY, "--yes", said=certain).stdout == "left_alone=25\n"
    assert metaq(world, "rollback", "--from", "-", *WHY, "--yes", said=told).stdout == "done=25\n"
    metaq(world, "forget", *map(str, keys), "--yes")


def test_the_doctor_ends_what_is_certain_together(world: World) -> None:
    keys = prepare(world, 30)
    rows = ", ".join(f"('{key.xid.gtrid.decode()}', 'commit', '{number % 2}')" for number, key in enumerate(keys[:10]))
    world.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES {rows}")
    where = ("--age", "0.1", "--database", world.deciding.url, "--json")
    done = [json.loads(line) for line in metaq(world, "doctor", *where, "--apply").stdout.splitlines()]
    assert Counter(row["done"] for row in done) == {"committed": 10, "rolled back": 20}
    assert prepared(world) == set()
    assert sorted(world.messages("orders") + world.messages("bills")) == list(range(10))


def _apart(name: str, kind: str, verbs: list[str], *branches: tuple[int, str]) -> dict[str, Any]:
    sides = [{"broker": broker_id, "state": state, "lsn": 1} for broker_id, state in branches]
    return {"kind": kind, "name": name, "verbs": verbs, "branches": sides, "decision": None}


def test_a_branch_that_changed_before_it_was_ended(world: World) -> None:
    """Its coordinator comes back between the listing and the command."""
    keys = prepare(world, 4)
    text, name = listed(world), world.deciding.identity.name
    world.client.producer(qualifier=name.qualifier).tpc_commit(keys[0].xid)
    world.client.producer(qualifier=name.qualifier).tpc_rollback(keys[1].xid)
    done = metaq(world, "commit", "--from", "-", *WHY, "--yes", "--json", said=text, status=1)
    assert states(done) == dict(zip(map(str, keys), ("done before", "refused", "done", "done"), strict=True))
    assert "it is rolled back, not prepared" in done.stdout
    metaq(world, "forget", *map(str, keys[2:]), "--yes")


@pytest.mark.parametrize("victim", ["command", "broker"])
def test_a_kill_half_way_and_a_repeat(world: World, tmp_path: Path, victim: str) -> None:
    """Broker 1 is stopped before the answer: its half is under way when it, or the command, is killed."""
    keys = prepare(world, 60)
    file, told = tmp_path / "listed", tmp_path / "told"
    file.write_text(listed(world))
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb") as answer:
        with told.open("wb") as output:
            words = ("txn", "rollback", "--from", str(file), *WHY, "--zk", world.zookeeper)
            command = start_metaq(words, stdin=stdin, stdout=output, stderr=output)
        wait_until(lambda: "Go on?" in told.read_text())
        world.brokers[1].pause()
        answer.write(b"y\n")
        answer.flush()
        branches = OnlineBranches(world.client)
        wait_until(lambda: branches.show(keys[-2], 0)["decision"] is not None)
        if victim == "command":
            command.kill()
            assert command.wait(60) == -9
            world.brokers[1].resume()
        else:
            world.brokers[1].kill()
            assert command.wait(60) == 1
            assert "done=30 unknown=30" in told.read_text()
            world.brokers[1].start()
    again = states(metaq(world, "rollback", "--from", str(file), *WHY, "--yes", "--json"))
    assert {again[str(key)] for key in keys[::2]} == {"done before"}
    assert {again[str(key)] for key in keys[1::2]} <= {"done", "done before"}
    assert prepared(world) == set()
    assert metaq(world, "rollback", "--from", str(file), *WHY, "--yes").stdout == "done_before=60\n"
    metaq(world, "forget", "--from", str(file), "--yes")
    assert listed(world) == ""


def test_a_broker_that_hangs_keeps_no_other_from_ending(world: World) -> None:
    """It is asked first, and takes all the time that it may."""
    keys = prepare(world, 6)
    lines = [json.dumps({"key": str(key), "broker": number % 2}) for number, key in enumerate(keys)]
    said = "\n".join(reversed(lines))
    world.brokers[1].pause()
    try:
        done = metaq(world, "rollback", "--from", "-", *WHY, "--yes", "--json", said=said, status=1)
    finally:
        world.brokers[1].resume()
    assert states(done) == dict(zip(map(str, keys), ("done", "unknown") * 3, strict=True))
    again = "\n".join(lines)
    wait_until(
        lambda: (
            run_metaq("txn", "rollback", "--from", "-", *WHY, "--yes", "--zk", world.zookeeper, stdin=again).returncode
            == 0
        )
    )
    metaq(world, "forget", "--from", "-", "--yes", said=again)


def test_branches_are_listed_beside_brokers_that_nobody_reaches(world: World) -> None:
    """A firewall drops what is sent to them: a connection is neither made nor refused."""
    keys = prepare(world, 4)
    with contextlib.ExitStack() as opened:
        dropping = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # more than it queues
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(dropping.getsockname())
        client = opened.enter_context(world.open_client())
        verbs = XaVerbs(client.topology, client.connections, "a-test")
        masters = {7: BrokerUrl("127.0.0.1", dropping.getsockname()[1])}
        masters |= {8: BrokerUrl("localhost", masters[7].port)} | client.topology.read_masters()
        listing = verbs.list_prepared(None, masters)
    assert sorted(key for some in listing.keys.values() for key in some) == sorted(keys)
    assert list(listing.failures) == [7, 8]
    metaq(world, "rollback", *map(str, keys), *WHY, "--yes")
    metaq(world, "forget", *map(str, keys), "--yes")


def test_in_a_stopped_brokers_directory(world: World, tmp_path: Path) -> None:
    keys = prepare(world, 6)
    broker = world.brokers[0]
    where = ("--dir", str(broker.data))
    broker.kill()
    for state in ("done", "done before"):
        done = run_metaq("txn", "commit", *map(str, keys[:4:2]), *WHY, "--yes", "--json", *where)
        assert done.returncode == 0, done.stderr
        assert set(states(done).values()) == {state}
    elsewhere = json.dumps({"key": str(keys[1]), "broker": 1})
    refused = run_metaq("txn", "commit", "--from", "-", *WHY, "--yes", *where, stdin=elsewhere)
    assert (refused.returncode, "not known to its broker" in refused.stdout) == (1, True), refused.stdout
    broker.start()
    assert prepared(world) == {str(key) for key in (keys[1], keys[3], keys[4], keys[5])}
    assert world.messages("orders") == [0, 2]
    metaq(world, "rollback", *prepared(world), *WHY, "--yes")
    metaq(world, "forget", *map(str, keys), "--yes")
