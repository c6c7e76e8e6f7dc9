"""`metaq groups`: what is listed, and setting a group elsewhere while nobody can spoil it."""

import contextlib
import datetime
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from meta_client.cli.group_reset import reset
from meta_client.cli.main import main
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offset_stores import LocalOffsetStore, SqlOffsetStore
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.operations.reset import claimed, run_reset
from meta_client.operations.reset_plan import Move, ResetRefused
from meta_client.operations.text import printable
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.wire import WireClient
from tests.integration.conftest import wait_until
from zk.embedded.chroot import Chroot
from zk.groups.ownership import Ownership
from zk.session import ephemerals
from zk.tree.nodes import NO_MESSAGE_ID, Partition, TopicPartition
from zk.tree.paths import ResetKey

A, B = Partition(0, 0), Partition(0, 1)
FRAME = 25  # bytes of a message of five


class Done(NamedTuple):
    stdout: str
    stderr: str


Metaq = Callable[..., Done]


@pytest.fixture
def metaq(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Metaq:
    """Run `metaq groups`, in this process: many times a test."""
    del broker

    def run(*words: str, status: int = 0) -> Done:
        monkeypatch.setattr(sys, "argv", ["metaq", "groups", *words, "--zk", zookeeper.connect])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(*capsys.readouterr())
        assert ended.value.code == status, done
        return done

    return run


@pytest.fixture
def client(zookeeper: Chroot) -> Iterator[Client]:
    with Client(zookeeper.connect) as client:
        yield client


def rows(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def put(broker: BrokerProcess, count: int, partition: int = 0, topic: str = "orders") -> datetime.datetime:
    """Put messages of five bytes; a moment after which nothing was put yet."""
    with WireClient(broker.port) as wire:
        for _ in range(count):
            wire.put(topic, partition, b"hello")
    time.sleep(0.02)
    return datetime.datetime.now(datetime.UTC)


def store(client: Client, group: str, offsets: dict[Partition, int], topic: str = "orders") -> None:
    ZooKeeperOffsetStore(client.session, group).commit(
        [OffsetEntry(topic, partition, offset) for partition, offset in offsets.items()]
    )


def stored(client: Client, group: str, partition: Partition = A) -> int | None:
    return ZooKeeperOffsetStore(client.session, group).load("orders", partition)


def test_how_far_groups_are_behind(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 3)
    store(client, "billing", {A: FRAME, B: 0})
    store(client, "audit", {A: 3 * FRAME})
    time.sleep(1.1)
    before = time.monotonic()
    put(broker, 1)
    one, first = rows(metaq("list", "--json"))
    assert (one["group"], one["members"], one["lag"], one["unowned"], one["partitions"]) == ("audit", 0, FRAME, 4, 4)
    assert 0 <= one["seconds"] <= time.monotonic() - before + 0.1
    assert one["seconds"] + 1 <= first["seconds"] < 60
    assert (first["group"], first["topics"], first["lag"]) == ("billing", "orders", 3 * FRAME)
    assert [(row["lag"], row["messages"]) for row in rows(metaq("--json"))] == [(FRAME, 1), (3 * FRAME, 3)]
    described = rows(metaq("describe", "billing", "--json"))
    assert [row["messages"] for row in described] == [3, 0, 0, 0]
    shown = [(row["partition"], row["offset"], row["end"], row["lag"], row["owner"]) for row in described]
    assert shown == [
        ("0-0", FRAME, 4 * FRAME, 3 * FRAME, None),
        ("0-1", 0, 0, 0, None),
        ("0-2", None, 0, 0, None),
        ("0-3", None, 0, 0, None),
    ]
    assert [row["state"] for row in described] == ["stored", "stored", "no-offset", "no-offset"]
    assert [row["seconds"] == 0 for row in described] == [False, True, True, True]
    assert metaq("describe", "nobody", status=1).stderr == "error: there is no group nobody: see `metaq groups`\n"


def test_an_offset_inside_a_message_tells_no_time(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    """Bytes inside a message are no id."""
    put(broker, 3)
    store(client, "odd", {A: FRAME + 3})
    described = rows(metaq("describe", "odd", "--json"))
    assert [(row["messages"], row["seconds"]) for row in described] == [(1, None), (0, 0), (0, 0), (0, 0)]
    (row,) = rows(metaq("--json"))
    assert (row["messages"], row["seconds"]) == (1, None), "0 would say that it has everything"


def test_a_group_whose_members_died_before_they_stored_an_offset(
    metaq: Metaq, zookeeper: Chroot, broker: BrokerProcess
) -> None:
    """All that there is waits, and not nothing: a first message may end every member."""
    put(broker, 3)
    with Client(zookeeper.connect) as member, member.consumer("billing") as consumer:
        consumer.subscribe("orders", acknowledge="manual")
        consumer.start()
        assert consumer.fetch(3, timeout_s=60)
    (row,) = rows(metaq("--json"))
    assert (row["members"], row["partitions"], row["no_offset"], row["lag"]) == (0, 4, 4, 3 * FRAME)
    assert [row["state"] for row in rows(metaq("describe", "billing", "--json"))] == ["no-offset"] * 4


def test_of_a_group_without_partitions_nothing_is_known(metaq: Metaq, client: Client) -> None:
    client.session.write_many({"/meta/consumers/billing/ids/billing_java": b"elsewhere"})
    (row,) = rows(metaq("--json"))
    assert (row["partitions"], row["lag"], row["messages"], row["seconds"]) == (0, None, None, None)


def test_a_lag_is_never_0_where_it_is_not(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 3)
    put(broker, 2, 1)
    client.session.write("/meta/consumers/billing/offsets/orders/0-3", b"far")
    store(client, "billing", {B: 5 * FRAME})
    done = metaq("describe", "billing", "--json", status=1)
    shown = [(row["partition"], row["offset"], row["end"], row["lag"], row["state"]) for row in rows(done)]
    assert shown == [
        ("0-0", None, 3 * FRAME, 3 * FRAME, "no-offset"),  # all that it holds
        ("0-1", 5 * FRAME, 2 * FRAME, None, "beyond-end"),
        ("0-2", None, 0, 0, "no-offset"),
        ("0-3", None, 0, None, "malformed"),
    ]
    assert [row["messages"] for row in rows(done)] == [3, None, 0, None]
    assert f"orders/0-1: offset {5 * FRAME} is beyond the end, {2 * FRAME}: messages were lost" in done.stderr
    assert "orders/0-3: its offset node can't be read" in done.stderr
    (row,) = rows(metaq("--json", status=1))
    assert (row["no_offset"], row["unknown"], row["lag"], row["messages"]) == (2, 2, 3 * FRAME, None)
    assert 0 <= row["seconds"] < 60
    store(client, "idle", {A: 3 * FRAME})
    (_, idle) = rows(metaq("--json", status=1))
    assert (idle["lag"], idle["unknown"], idle["seconds"] > 0) == (2 * FRAME, 0, True)
    broker.kill()
    assert [(row["unknown"], row["lag"], row["seconds"]) for row in rows(metaq("--json", status=1))] == [
        (4, None, None),
        (4, None, None),
    ]


def test_a_reset_replaces_an_offset_that_cannot_be_read(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 3)
    client.session.write("/meta/consumers/billing/offsets/orders/0-0", b"far")
    done = metaq("reset", "billing", "orders/0-0", "--to", "latest", "--yes")
    assert "/meta/consumers/billing/offsets/orders/0-0 holds b'far'" in done.stderr
    assert stored(client, "billing") == 3 * FRAME


def test_a_reset_shows_before_and_after_and_acts_when_told(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 2)
    between = put(broker, 1, 1)
    put(broker, 2)
    store(client, "billing", {A: 3 * FRAME, B: FRAME})
    words = ["reset", "billing", "--to", between.isoformat(), "orders/0-0", "/0-1"]
    planned = rows(metaq(*words, "--json"))
    assert [(row["before"], row["after"], row["change"], row["done"]) for row in planned] == [
        (3 * FRAME, 2 * FRAME, -FRAME, False),
        (FRAME, FRAME, 0, False),
    ]
    done = metaq(*words)
    assert done.stdout.splitlines()[0].split() == ["group", "topic", "partition", "before", "after", "change", "done"]
    assert done.stderr == "nothing was changed: say --yes to do it\n"
    assert stored(client, "billing") == 3 * FRAME
    assert "group-reset" not in broker.log
    assert [row["done"] for row in rows(metaq(*words, "--yes", "--json"))] == [True, True]
    (line,) = (line for line in broker.log.splitlines() if "group-reset" in line)
    assert "metaq.audit audit action=group-reset outcome=done principal=- conn=127.0.0.1:" in line
    assert line.endswith(f" group=billing topic=orders partition=0 before={3 * FRAME} after={2 * FRAME}")
    assert (stored(client, "billing"), stored(client, "billing", B)) == (2 * FRAME, FRAME)
    assert {row["owner"] for row in rows(metaq("describe", "billing", "--json"))} == {None}


TARGETS: list[tuple[list[str], int]] = [
    (["--to", "earliest"], 0),
    (["--to", "latest"], 6 * FRAME),
    (["--to", str(4 * FRAME)], 4 * FRAME),
    (["--to", str(6 * FRAME)], 6 * FRAME),
    (["--to", "+2"], 5 * FRAME),
    (["--to", "+100"], 6 * FRAME),
    (["--to", "-1"], 2 * FRAME),
    (["--to", "-3"], 0),
    (["--to", "-100"], 0),
    (["--to", "+0"], 3 * FRAME),
    (["--to", "group:audit"], FRAME),
    (["--to", "group:ahead"], 6 * FRAME),
]


def test_every_target(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 6)
    store(client, "audit", {A: FRAME})
    store(client, "ahead", {A: 600 * FRAME})
    for words, after in TARGETS:
        store(client, "billing", {A: 3 * FRAME})
        metaq("reset", "billing", "orders/0-0", *words, "--yes")
        assert stored(client, "billing") == after, words


def test_a_reset_has_six_options() -> None:
    assert sum(isinstance(parameter, click.Option) and parameter.expose_value for parameter in reset.params) == 6


def test_a_reset_is_undone_by_what_it_printed(
    metaq: Metaq, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    put(broker, 6)
    store(client, "billing", {A: 3 * FRAME})
    undo, listed = tmp_path / "undo", tmp_path / "listed"
    undo.write_text(metaq("reset", "billing", "--to", "latest", "--yes", "--json").stdout)
    assert (stored(client, "billing"), stored(client, "billing", B)) == (6 * FRAME, 0)
    listed.write_text(metaq("describe", "billing", "--json").stdout)
    metaq("reset", "billing", "--to", f"file:{undo}", "--yes")
    assert (stored(client, "billing"), stored(client, "billing", B)) == (3 * FRAME, 0)
    metaq("reset", "billing", "--to", f"file:{listed}", "--yes")
    assert stored(client, "billing") == 6 * FRAME
    for line in (b"{}", b"7", b"[" * 9999, b'{"topic": "orders", "partition": "0-0", "offset": -1}'):
        listed.write_bytes(undo.read_bytes() + line)
        done = metaq("reset", "billing", "--to", f"file:{listed}", "--yes", status=2)
        assert "line 5 is not what `metaq groups ... --json` prints" in done.stderr
    assert stored(client, "billing") == 6 * FRAME


def test_an_offset_of_a_file_or_a_group_is_no_excuse_for_the_inside_of_a_message(
    metaq: Metaq, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    """Another cluster's, an edited one, or one of before a promotion that lost messages."""
    put(broker, 6)
    store(client, "billing", {A: 3 * FRAME})
    store(client, "audit", {A: FRAME + 7})
    listed = tmp_path / "listed"
    listed.write_text(json.dumps({"topic": "orders", "partition": "0-0", "offset": FRAME + 7}))
    for target in (f"file:{listed}", "group:audit"):
        done = metaq("reset", "billing", "orders/0-0", "--to", target, "--yes", status=2)
        assert done.stderr == "error: 32 is inside of a message of orders/0-0: 25 is where that begins\n"
    assert stored(client, "billing") == 3 * FRAME


def test_a_reset_whose_output_can_not_be_written_tells_what_undoes_it(
    zookeeper: Chroot, broker: BrokerProcess, client: Client
) -> None:
    put(broker, 3)
    store(client, "audit", {A: FRAME})
    words = ["groups", "reset", "audit", "orders/0-0", "--to", "latest", "--zk", zookeeper.connect]
    full, empty = Path("/dev/full"), Path(os.devnull)
    with full.open("wb") as stdout, empty.open("rb") as stdin, tempfile.TemporaryFile() as told:
        assert start_metaq(words, stdin=stdin, stdout=stdout, stderr=told).wait(60) == 2
        told.seek(0)
        assert told.read() == b"error: the operating system: No space left on device\n", "there is nothing to undo"
    program = f"{sys.executable} -m meta_client.cli.main groups reset audit orders/0-0 --to latest --yes --json"
    line = f"{program} --zk {zookeeper.connect} >/dev/full"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    said, row, error = done.stderr.splitlines()
    assert said == "the group was reset; what standard output did not take:"
    assert (json.loads(row)["before"], json.loads(row)["after"]) == (FRAME, 3 * FRAME)
    assert error == "error: the operating system: No space left on device"


def test_a_reset_that_is_interrupted_once_it_is_done_prints_what_undoes_it(
    metaq: Metaq, broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, 3)
    store(client, "audit", {A: FRAME})
    release = Ownership.abandon_many

    def ctrl_c(ownership: Ownership, keys: Collection[TopicPartition]) -> None:
        release(ownership, keys)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ownership, "abandon_many", ctrl_c)
    done = metaq("reset", "audit", "orders/0-0", "--to", "latest", "--yes", "--json", status=130)
    assert stored(client, "audit") == 3 * FRAME
    assert (json.loads(done.stdout)["before"], json.loads(done.stdout)["done"]) == (FRAME, True)


def test_a_shift_back_over_batches_and_files(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    for number in range(60):
        producer.send_async("orders", b"%05d" % number, partition=A)
        if not number % 7:
            producer.flush()
    producer.flush()
    store(client, "billing", {A: 50 * FRAME})
    metaq("reset", "billing", "/0-0", "--to", "-33", "--yes")
    assert stored(client, "billing") == 17 * FRAME


NONSENSE: list[tuple[list[str], str]] = [
    (
        ["--to", "30", "/0-0"],
        "error: 30 is inside of a message of orders/0-0: 25 is where that",
    ),
    (["--to", "9000", "/0-0"], "orders/0-0 holds [0, 75): 9000 is outside"),
    (["--to", "25"], "--to 25, an offset, is for one partition: name it, like orders/0-3"),
    (["--to", "earliest", "--to", "latest"], "name one target"),
    ([], "name one target"),
    (["--to", "latest", "nothing"], "no broker offers topic nothing: see `metaq topics`"),
    (["--to", "latest", "0-1"], "no broker offers topic 0-1: see `metaq topics`, or write /0-1 for that partition"),
    (["--to", "latest", "orders/7-0"], "orders has no partition 7-0: see `metaq offsets`"),
    (
        ["--to", "later"],
        "later is neither earliest, latest, +N or -N messages, group:NAME nor file:FILE, nor an offset",
    ),
    (["--to", "+1000001"], "too many messages at once: at most 1000000"),
    (["--to", "file:nowhere.jsonl"], "there is no file nowhere.jsonl: name what a reset, or describe, printed"),
    (["--to", "latest", "--members", "wait:ever"], "ever is not a number of seconds from 0 to 1000000"),
    (["--to", "latest", "/7-0"], "orders has no partition 7-0: see `metaq offsets`"),
    (["--to", "latest", "/0"], "0 is no partition: write it as listings show it, like 0-3"),
    (["--to", "group:nobody"], "group nobody has stored nothing of these partitions"),
    (["--to", "+1"], "nothing is stored of orders/0-1 that could be shifted"),
    (["--to", "latest", "--store", "sqlite://", "--members", "force"], "--members force is for offsets in ZooKeeper"),
    (["--to", "latest", "--store", "nosuch://u:secret@host/db"], "give an SQLAlchemy URL whose driver is installed"),
    (
        ["--to", "latest", "--store", "postgresql+psycopg://u:p@x:secret@host/db"],
        "can't be read: write / : @ of a password as %2F %3A %40",
    ),
    (
        ["--to", "latest", "--store", "sqlite:////nowhere/at/all.db"],
        "the database of --store: (sqlite3.OperationalError)",
    ),
]


def test_what_makes_no_sense_changes_nothing(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 3)
    store(client, "billing", {A: FRAME})
    for words, said in NONSENSE:
        done = metaq("reset", "billing", "--yes", *words, status=2)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
        assert "secret" not in done.stderr
    assert stored(client, "billing") == FRAME


def test_a_member_that_is_alive_is_named_and_waited_for(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    put(broker, 3)
    consumer = client.consumer("billing")
    consumer.subscribe("orders", lambda batch: None)
    consumer.start()
    wait_until(lambda: len(consumer.owned()) == 4 and consumer.is_caught_up())
    words = ["reset", "billing", "--to", "earliest"]
    done = metaq(*words, "--yes", status=2)
    text = f"group billing has members alive, which would go on where they are: {consumer.consumer_id}"
    assert (
        done.stderr
        == f"error: {text}: stop them, or say --members wait:SECONDS or --members force; nothing was changed\n"
    )
    done = metaq(*words)
    assert done.stderr == f"warning: {text}\nnothing was changed: say --yes to do it\n"
    command = [sys.executable, "-m", "meta_client.cli.main", "groups", *words, "--yes", "--members", "wait:30"]
    with subprocess.Popen([*command, "--zk", client.session.connect], stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"waiting up to 30 s: {text}\n"
        consumer.close()
        assert waiting.wait(60) == 0
    assert stored(client, "billing") == 0


def test_names_that_strangers_choose_do_nothing_to_the_terminal(
    metaq: Metaq, broker: BrokerProcess, client: Client
) -> None:
    """An owner is told as an error, a member as a warning, a node that can't be read by the log."""
    put(broker, 3)
    name = "\x1b]0;pwned\x07\u202e"
    Ownership(client.session, "billing", name).claim_many([("orders", A)])
    store(client, "billing", {A: 0})
    owned = metaq("reset", "billing", "--to", "latest", "--yes", status=2).stderr
    assert owned.startswith(f"error: partitions still belong to {printable(name)}: it has just come")
    client.session.write_many({f"/meta/consumers/billing/ids/{printable(name)}\u202e": b"orders"})
    alive = metaq("reset", "billing", "--to", "latest").stderr
    assert alive.startswith("warning: group billing has members alive")
    client.session.write_many({"/meta/consumers/billing/offsets/\u202eorders/0-0": b"unreadable"})
    listed = run_metaq("groups", "--zk", client.session.connect).stderr
    assert r"/meta/consumers/billing/offsets/\u202eorders/0-0" in listed
    assert (owned + alive + listed).replace("\n", "").isprintable()


def test_two_resets_of_one_host_name_and_process_id_do_not_share_a_claim(
    zookeeper: Chroot, broker: BrokerProcess, client: Client
) -> None:
    """Refusal of the one that comes second, as in two containers: it leaves the other's claim."""
    put(broker, 3)
    store(client, "billing", {A: FRAME})
    other = Client(zookeeper.connect)
    with contextlib.closing(other), claimed(other, "billing", [("orders", A)]) as first:
        with (
            pytest.raises(ResetRefused, match="partitions still belong to billing_metaq-reset-"),
            claimed(client, "billing", [("orders", A)]),
        ):
            pytest.fail("both own the partition")
        entry = OffsetEntry("orders", A, 3 * FRAME, NO_MESSAGE_ID, first["orders", A], is_reset=True)
        ZooKeeperOffsetStore(other.session, "billing").commit([entry])
    assert stored(client, "billing") == 3 * FRAME


@pytest.mark.parametrize("duplicates_max", [0, 100])
def test_by_force_a_member_that_is_alive_goes_on_from_there(
    metaq: Metaq, broker: BrokerProcess, client: Client, duplicates_max: int
) -> None:
    """The member waits at the broker with nothing to store, so the reset must reach it there. What it remembers as
    consumed is asked for again."""
    put(broker, 3)
    put(broker, 2, 1)
    seen: list[tuple[str, int]] = []
    config = ConsumerConfig(commit_period_s=0.2, duplicates_max=duplicates_max)
    with client.consumer("billing", config=config) as consumer:
        consumer.subscribe("orders", lambda batch: seen.extend((str(it.partition), it.offset) for it in batch.messages))
        consumer.start()
        wait_until(lambda: len(seen) == 5 and consumer.is_caught_up())
        wait_until(lambda: stored(client, "billing") == 3 * FRAME)
        seen.clear()
        (row, *_) = rows(metaq("reset", "billing", "/0-0", "--to", "-2", "--members", "force", "--yes", "--json"))
        assert (row["before"], row["after"]) == (3 * FRAME, FRAME)
        wait_until(lambda: len(seen) == 2)
        assert seen == [("0-0", FRAME), ("0-0", 2 * FRAME)]
        wait_until(lambda: stored(client, "billing") == 3 * FRAME)
        assert len(consumer.owned()) == 4
        metaq("reset", "billing", "--to", "latest", "--members", "force", "--yes")
        put(broker, 1)
        wait_until(lambda: len(seen) == 3)
        assert seen[2] == ("0-0", 3 * FRAME)


def test_a_reset_waits_for_another_one(
    metaq: Metaq, broker: BrokerProcess, client: Client, zookeeper: Chroot, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, to opposite targets, they would leave a mixture."""
    put(broker, 3)
    put(broker, 2, 1)
    store(client, "billing", {A: FRAME, B: FRAME})
    keys = [("orders", A), ("orders", B)]
    with Client(zookeeper.connect) as other, ThreadPoolExecutor(1) as thread:
        stores = ZooKeeperOffsetStore(client.session, "billing"), ZooKeeperOffsetStore(other.session, "billing")

        def on_step(moves: list[Move], is_done: bool | None) -> None:
            if not is_done:
                return
            waiting.append(thread.submit(run_reset, other, stores[1], "billing", keys, "latest", "force"))
            wait_until(lambda: "resets group billing" in capsys.readouterr().err)
            assert not waiting[0].done()
            assert (stored(client, "billing"), stored(client, "billing", B)) == (0, 0)

        waiting: list[Future[list[Move]]] = []
        run_reset(client, stores[0], "billing", keys, "earliest", "force", on_step)
        assert [move.before for move in waiting[0].result(30)] == [0, 0]
    assert (stored(client, "billing"), stored(client, "billing", B)) == (3 * FRAME, 2 * FRAME)


def test_a_reset_that_does_not_end_is_named(
    metaq: Metaq, broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, 3)
    store(client, "billing", {A: FRAME})
    monkeypatch.setattr(ephemerals, "EXPIRY_SLACK_S", 0.5 - client.session.session_timeout_s)
    path = client.session.paths.of(ResetKey("billing"))
    client.session.create(path, b"metaq-reset-host-7\x1b[1m", ephemeral=True)
    for members in ("force", "refuse"):
        done = metaq("reset", "billing", "--to", "latest", "--members", members, "--yes", status=2)
        assert "metaq-reset-host-7\\x1b[1m resets group billing: wait for it to end; nothing was changed" in done.stderr
    assert stored(client, "billing") == FRAME
    metaq("reset", "billing", "--to", "latest")
    client.session.delete(path)
    metaq("reset", "billing", "--to", "latest", "--yes")
    assert stored(client, "billing") == 3 * FRAME
    assert client.session.read(path) is None


def test_a_genuine_member_is_not_overruled(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    """A reset would be undone by its next commit."""
    put(broker, 3)
    store(client, "billing", {A: FRAME, B: 0})
    client.session.create("/meta/consumers/billing/ids/billing_java", b"orders", ephemeral=True)
    client.session.create("/meta/consumers/billing/owners/orders/0-1", b"billing_java", ephemeral=True)
    done = metaq("reset", "billing", "--to", "latest", "--members", "force", "--yes", status=2)
    assert "billing_java is a genuine member and can't be overruled: stop it; nothing was changed" in done.stderr
    assert stored(client, "billing") == FRAME
    metaq("reset", "billing", "--to", "latest", "/0-0", "--members", "force", "--yes")
    assert stored(client, "billing") == 3 * FRAME


def test_an_owner_that_is_no_member_is_named(metaq: Metaq, broker: BrokerProcess, client: Client) -> None:
    """Such an owner has just come, or is gone without notice."""
    put(broker, 3)
    store(client, "billing", {A: FRAME})
    Ownership(client.session, "billing", "billing_late").claim_many([("orders", A)])
    done = metaq("reset", "billing", "--to", "latest", "--yes", status=2)
    assert "partitions still belong to billing_late: it has just come, or is gone without a word" in done.stderr
    assert stored(client, "billing") == FRAME
    assert [row["owner"] for row in rows(metaq("describe", "billing", "--json"))] == ["billing_late", None, None, None]


def test_looking_makes_no_store(metaq: Metaq, broker: BrokerProcess, tmp_path: Path) -> None:
    """A name with a slip in it must not become a store that nobody reads."""
    put(broker, 1)
    file, directory = tmp_path / "shop.db", tmp_path / "offsets"
    for words in (["reset", "orders", "--to", "latest"], ["describe", "--topic", "orders"]):
        command, *options = words
        for place, said in ((f"sqlite:///{file}", "no such table"), (str(directory), "there is no directory")):
            where = ["ledger", "--store", place]
            assert said in metaq(command, *where, *options, status=2).stderr
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert not directory.exists()


def test_offsets_that_are_kept_elsewhere(metaq: Metaq, broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    put(broker, 3)
    url = f"sqlite:///{tmp_path}/shop.db"
    with SqlOffsetStore(url, "ledger") as in_database:
        in_database.load("orders", A)
        in_database.commit([OffsetEntry("orders", A, 3 * FRAME)])
        words = ["reset", "ledger", "orders", "--to", "earliest", "--yes", "--store"]
        (row, *_) = rows(metaq(*words, url, "--json"))
        assert (row["before"], row["after"], in_database.load("orders", A)) == (3 * FRAME, 0, 0)
        described = rows(metaq("describe", "ledger", "--topic", "orders", "--store", url, "--json"))
        shown = [(row["offset"], row["lag"], row["seconds"] is None) for row in described]
        assert shown == [(0, 3 * FRAME, False), (0, 0, False), (0, 0, False), (0, 0, False)]
        metaq(*words, f"{url}#another")
        with SqlOffsetStore(url, "ledger", "another") as other:
            assert (in_database.load("orders", A), other.load("orders", A)) == (0, 0)
    with LocalOffsetStore.open(tmp_path / "offsets", "ledger") as in_file:
        in_file.commit([OffsetEntry("orders", A, 3 * FRAME)])
        place = str(tmp_path / "offsets")
        (row, *_) = rows(metaq("describe", "ledger", "--topic", "orders", "--store", place, "--json"))
        assert (row["offset"], row["lag"]) == (3 * FRAME, 0)
        done = metaq(*words, place, status=2)
        assert "offsets is in use by another consumer: stop it first" in done.stderr
    metaq(*words, str(tmp_path / "offsets"))
    with LocalOffsetStore.open(tmp_path / "offsets", "ledger") as in_file:
        assert in_file.load("orders", A) == 0
