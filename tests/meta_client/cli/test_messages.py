"""`metaq produce` and `consume` as a shell runs them, against a real broker."""

import base64
import contextlib
import datetime
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta_client.cli.main import main
from meta_client.client import Client
from meta_client.operations.reading import Span, read_topic_messages
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq_bytes
from tests.fixtures.replicas import Replicas, wait_until
from zk.embedded.chroot import Chroot

Metaq = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-m", "meta_client.cli.main"]


@pytest.fixture
def metaq(zookeeper: Chroot, broker: BrokerProcess) -> Metaq:
    """Run `metaq` on the test's ZooKeeper, with a broker that has `orders`, `invoices` and `meta-test`."""
    del broker

    def run(*words: str, stdin: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = run_metaq_bytes(*words, "--zk", zookeeper.connect, stdin=stdin)
        assert done.returncode == status, done.stderr.decode()
        return done

    return run


@pytest.fixture
def inside(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, bytes, bytes]]:
    """Run `metaq` in this process: many times a test. Returns status, output and errors."""
    del broker

    def run(*words: str) -> tuple[int, bytes, bytes]:
        monkeypatch.setattr(sys, "argv", ["metaq", *words, "--zk", zookeeper.connect])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfdbinary.readouterr()

    return run


def test_lines_in_lines_out(metaq: Metaq) -> None:
    lines = [b"first", b"", b"caf\xc3\xa9", b"\xff\xfe no utf-8", b"last, without a line's end"]
    done = metaq("produce", "orders", stdin=b"first\n\r\ncaf\xc3\xa9\r\n\xff\xfe no utf-8\nlast, without a line's end")
    assert done.stderr.startswith(b"sent 5 messages to orders in ")
    assert done.stdout == b""
    assert sorted(metaq("consume", "orders").stdout.removesuffix(b"\n").split(b"\n")) == sorted(lines)
    assert sorted(metaq("consume", "orders").stdout.removesuffix(b"\n").split(b"\n")) == sorted(lines)


def test_a_message_gives_a_terminal_no_commands(metaq: Metaq, zookeeper: Chroot) -> None:
    metaq("produce", "orders", stdin=b"\x1b]0;title\x07\xff\n")
    primary, terminal = pty.openpty()
    try:
        subprocess.run([*COMMAND, "consume", "orders", "--zk", zookeeper.connect], stdout=terminal, check=True)
        assert os.read(primary, 4096) == rb"\x1b]0;title\x07\xff" + b"\r\n"
    finally:
        os.close(terminal)
        os.close(primary)
    assert metaq("consume", "orders").stdout == b"\x1b]0;title\x07\xff\n"


def test_a_group_that_leaves_a_partition_out_says_so(metaq: Metaq, zookeeper: Chroot) -> None:
    for number in range(4):
        metaq("produce", "orders", "--partition", f"0-{number}", stdin=b"%d\n" % number)
    with Client(zookeeper.connect) as client:
        for number in range(4):
            offset = f"/meta/consumers/billing/offsets/orders/0-{number}"
            client.session.ensure(offset)
            client.session.write(offset, b"garbage" if number in (0, 2) else b"0-0")
    done = metaq("consume", "orders", "--group", "billing", status=1)
    assert sorted(done.stdout.splitlines()) == [b"1", b"3"]
    assert b"incomplete: this member has not got its whole share of orders in 10 s" in done.stderr


def test_commands_that_send_one_message_each_do_not_all_choose_the_same_partition(metaq: Metaq) -> None:
    """Each is a producer of its own, which begins anywhere."""
    for _ in range(12):
        metaq("produce", "orders", stdin=b"one\n")
    read = metaq("consume", "orders", "--json").stdout.splitlines()
    assert len(read) == 12
    assert len({json.loads(line)["partition"] for line in read}) > 1  # of four: once in four million runs it is one


def test_json_tells_everything(metaq: Metaq, tmp_path: Path) -> None:
    source = tmp_path / "orders.csv"
    source.write_bytes(b'536365,"6 lanterns, white"\n"5,36366",x\n')
    metaq("produce", "meta-test", str(source), "--key-column", "1")
    metaq("produce", "meta-test", "--attribute", "all", stdin=b"\xff\n")
    shown = [json.loads(line) for line in metaq("consume", "meta-test", "--json").stdout.splitlines()]
    assert [message["attribute"] for message in shown] == ["536365", "5,36366", "all"]
    assert shown[0]["payload"] == '536365,"6 lanterns, white"'
    assert base64.b64decode(shown[2]["payload_base64"]) == b"\xff"
    assert shown[0]["offset"] == 0
    assert shown[0]["partition"] == "0-0"
    assert len({message["message_id"] for message in shown}) == 3


def test_a_group_goes_on_exactly_after_what_was_shown(metaq: Metaq) -> None:
    metaq("produce", "meta-test", stdin=b"".join(b"%d\n" % number for number in range(10)))
    seen = [metaq("consume", "meta-test", "--group", "audit", "--count", "3").stdout.split() for _ in range(3)]
    assert seen == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6", b"7", b"8"]]
    assert metaq("consume", "meta-test", "--group", "audit").stdout == b"9\n"
    assert metaq("consume", "meta-test", "--group", "audit").stdout == b""
    (row,) = [json.loads(line) for line in metaq("groups", "describe", "audit", "--json").stdout.splitlines()]
    assert (row["partition"], row["offset"], row["end"], row["lag"]) == ("0-0", 210, 210, 0)
    assert row["owner"] is None
    metaq("produce", "meta-test", stdin=b"10\n")
    (row,) = [json.loads(line) for line in metaq("groups", "list", "--json").stdout.splitlines()]
    assert (row["group"], row["lag"]) == ("audit", 22)


def test_latest_shows_only_what_comes(metaq: Metaq, zookeeper: Chroot) -> None:
    metaq("produce", "meta-test", stdin=b"old\n")
    command = [*COMMAND, "consume", "meta-test", "--from", "latest", "--count", "1", "--zk", zookeeper.connect]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            metaq("produce", "meta-test", stdin=b"new\n")
        assert process.communicate(timeout=60)[0] == b"new\n"
        assert process.returncode == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_following_quietly_and_stores_what_was_shown(
    metaq: Metaq, zookeeper: Chroot, number: int, status: int
) -> None:
    metaq("produce", "meta-test", stdin=b"one\ntwo\n")
    command = [*COMMAND, "consume", "meta-test", "--group", "audit", "--follow", "--zk", zookeeper.connect]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"one\n", b"two\n"]
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (status, b"", b"")
    assert metaq("consume", "meta-test", "--group", "audit").stdout == b""


def test_a_reader_that_goes_away_is_no_error(metaq: Metaq, zookeeper: Chroot) -> None:
    metaq("produce", "orders", stdin=b"x" * 100 + b"\n" + (b"y" * 60_000 + b"\n") * 20)
    for group in ([], ["--group", "audit"]):
        words = " ".join([*COMMAND, "consume", "orders", *group, "--zk", zookeeper.connect])
        pipeline = f"( {words}; echo status $? >&2 ) | head -c 1"
        done = subprocess.run(["/bin/sh", "-c", pipeline], capture_output=True, timeout=300)
        assert (len(done.stdout), done.stderr) == (1, b"status 0\n")


@pytest.mark.parametrize(
    ("output", "why"), [("> /dev/full", "No space left on device"), ("| /bin/true", "Broken pipe")]
)
def test_outcomes_that_can_not_be_written_end_sending_with_what_is_stored(
    metaq: Metaq, zookeeper: Chroot, tmp_path: Path, output: str, why: str
) -> None:
    produce = " ".join([*COMMAND, "produce", "orders", "--json", "--partition", "0-0", "--zk", zookeeper.connect])
    status = tmp_path / "status"
    line = f"(seq 3; sleep 1; seq 4 30000) | ( sleep 1; {produce}; echo $? > {status} ) {output}"
    told = subprocess.run(["/bin/sh", "-c", line], capture_output=True, timeout=300).stderr.decode()
    assert status.read_text() == "2\n", told
    match = re.fullmatch(rf"error: stopped after (\d+) messages, which are stored: standard output: {why}\n", told)
    assert match, told
    shown = metaq("consume", "orders").stdout.split()
    assert shown == [b"%d" % number for number in range(1, int(match[1]) + 1)]
    assert 3 <= len(shown) < 30_000


def test_a_signal_ends_sending_with_what_is_stored(metaq: Metaq, zookeeper: Chroot) -> None:
    for number, (sent, ended, status) in enumerate(
        [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
    ):
        command = [*COMMAND, "produce", "orders", "--json", "--zk", zookeeper.connect]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"one\ntwo\n")
            assert [json.loads(process.stdout.readline())["outcome"] for _ in range(2)] == ["stored", "stored"]
            process.send_signal(sent)
            told = process.communicate(timeout=60)[1].decode()
            assert process.returncode == status
        assert told.strip() == f"stopped after 2 messages, which are stored: {ended}"
        assert len(metaq("consume", "orders").stdout.split()) == 2 * (number + 1)


def test_a_long_line_and_a_bad_one_say_where(metaq: Metaq) -> None:
    done = metaq("produce", "orders", stdin=b"good\n" + b"x" * (2_097_153) + b"\n", status=2)
    assert done.stderr == (
        b"error: stopped after 1 messages, which are stored: "
        b"standard input, line 2 is longer than 2097152 bytes, the most a message may have\n"
    )
    done = metaq("produce", "orders", "--key-column", "2", stdin=b"a,b\nc\n", status=2)
    assert b"standard input, line 2 has 1 columns, --key-column is 2" in done.stderr


def test_nothing_to_send_is_fine_for_a_topic_that_there_is(metaq: Metaq) -> None:
    assert metaq("produce", "orders").stderr.startswith(b"sent 0 messages to orders in ")
    done = metaq("produce", "bad topic", status=2)
    assert b"send to bad topic: no broker offers this topic: start one that does, or correct the name" in done.stderr


WRONG: list[tuple[list[str], bytes]] = [
    (["produce", "nothing"], b"send to nothing: no broker offers this topic"),
    (["produce", "orders", "/proc/self/mem"], b"/proc/self/mem: Input/output error"),
    (["produce", "orders", "/nowhere"], b"stopped after 0 messages, which are stored: /nowhere: No such file"),
    (["produce", "orders", "--key-column", "1", "--key-field", "a"], b"--key-column and --key-field exclude each"),
    (["produce", "orders", "--key-column", "0"], b"--key-column counts from 1"),
    (["produce", "orders", "--by-key", "--partition", "0-1"], b"--by-key and --partition exclude each other"),
    (["produce", "orders", "--header"], b"--header goes with --key-column"),
    (["produce", "orders", "--format", "json", "--key-field", "a"], b"leave --format json out"),
    (["produce", "orders", "--partition", "0-77"], b"orders/0-77"),
    (["consume", "orders", "--from", "17"], b"an OFFSET is of one partition: name it with --partition"),
    (
        ["consume", "orders", "--from", "noon"],
        b"noon is neither earliest, latest nor stored, nor an offset",
    ),
    (["consume", "orders", "--until", "noon"], b"noon is neither an offset, nor a time like 2010-12-05T10:00"),
    (["consume", "orders", "--until", "2010-12-05", "--follow"], b"--follow never ends, --until does"),
    (["consume", "orders", "--group", "g", "--partition", "0-0"], b"--partition and --until are not for a --group"),
    (["consume", "orders", "--partition", "0-9"], b"read orders: there is no partition 0-9: see `metaq offsets`"),
    (["consume", "orders", "--format", "{key}"], b"{key} is none of {topic}, {partition}, {offset}"),
    (["consume", "nothing"], b"read nothing: no broker offers this topic"),
    (["consume", "orders", "--from", "stored"], b"--from stored needs --group"),
    (["consume", "orders", "--group", "a.b"], b"Group name has invalid character '.'"),
    (["produce", "orders", "--attribute", "a", "--key-column", "1"], b"exclude each other"),
]


def test_what_goes_wrong_is_one_line(
    inside: Callable[..., tuple[int, bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, said in WRONG:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"line\n")))
        status, _, error = inside(*words)
        assert (status, error.count(b"\n"), error[:7]) == (2, 1, b"error: "), error
        assert said in error


def test_every_form_of_input_is_a_message_with_its_place(metaq: Metaq, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'Invoice,Text\n536365,"six\nlanterns"\n')
    (tmp_path / "b.csv").write_bytes(b"Text,Invoice\ncandles,536366\n")
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    done = metaq("produce", "meta-test", *files, "--key-column", "Invoice", "--json")
    places = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(it["source"], it["line"], it["partition"]) for it in places] == [(name, 2, "0-0") for name in files]
    metaq("produce", "meta-test", "--key-field", "n", stdin=b'{"n": 7, "x": null}\n')
    metaq("produce", "meta-test", "--format", "whole", "--attribute", "all", files[1])
    copy = metaq("consume", "meta-test", "--json").stdout
    metaq("produce", "orders", "--format", "json", "--partition", "0-2", stdin=copy)
    shown = metaq("consume", "orders", "--partition", "0-2", "--format", r"{attribute}|{bytes}|{payload}\n").stdout
    assert shown == (
        b'536365|21|536365,"six\nlanterns"\n536366|14|candles,536366\n7|19|{"n": 7, "x": null}\n'
        b"all|28|Text,Invoice\ncandles,536366\n\n"
    )
    places += [json.loads(line) for line in copy.splitlines()]
    assert [it["offset"] for it in places[:2]] == [it["offset"] for it in places[2:4]]


def test_what_a_dry_run_finds_is_not_sent(metaq: Metaq, tmp_path: Path) -> None:
    words = ["produce", "meta-test", "--format", "json", "--dry-run"]
    good = b'{"payload": "a"}\n{"payload_base64": "/w=="}\n'
    assert metaq(*words, stdin=good).stderr == b"would send 2 messages to meta-test; nothing was sent\n"
    done = metaq(*words, stdin=good + b'{"payload": 7}\n', status=2)
    assert b"standard input, line 3 is not what `metaq consume --json` prints" in done.stderr
    assert metaq("consume", "meta-test").stdout == b""


def test_by_key_messages_of_one_attribute_stay_together(metaq: Metaq) -> None:
    lines = b"".join(b"%d,%d\n" % (number % 7, number) for number in range(100))
    metaq("produce", "orders", "--key-column", "1", "--by-key", stdin=lines)
    shown = metaq("consume", "orders", "--format", r"{attribute} {partition} {payload}\n").stdout.splitlines()
    places = {line.split()[0]: line.split()[1] for line in shown}
    assert all(line.split()[1] == places[line.split()[0]] for line in shown)
    assert len(set(places.values())) > 1
    numbers = [int(line.partition(b",")[2]) for line in shown if line.startswith(b"3 ")]
    assert numbers == list(range(3, 100, 7))


def test_a_part_of_a_topic(metaq: Metaq, inside: Callable[..., tuple[int, bytes, bytes]]) -> None:
    metaq("produce", "meta-test", stdin=b"a\nb\n")
    shown = [json.loads(line) for line in metaq("consume", "meta-test", "--json").stdout.splitlines()]
    time.sleep(0.05)
    between = datetime.datetime.now(datetime.UTC)
    time.sleep(0.05)
    assert all(datetime.datetime.fromisoformat(it["time"]) < between for it in shown)
    metaq("produce", "meta-test", stdin=b"c\n")
    part = ["consume", "meta-test", "--partition", "0-0"]
    second = str(shown[1]["offset"])
    for words, seen in [
        (["--from", between.isoformat()], b"c\n"),
        (["--until", between.isoformat()], b"a\nb\n"),
        (["--from", second], b"b\nc\n"),
        (["--from", second, "--until", "63"], b"b\nc\n"),
        (["--until", second], b"a\n"),
        (["--until", "99999999"], b"a\nb\nc\n"),
        (["--from", "99999999"], b""),
        (["--from", "latest", "--until", between.isoformat()], b""),
        (["--from", second, "--count", "1"], b"b\n"),
    ]:
        assert inside(*part, *words) == (0, seen, b""), words
    for more in ([], ["--follow"]):
        status, _, error = inside(*part, "--from", "5", *more)
        assert (status, error) == (2, b"error: 5 is inside of a message of meta-test/0-0: 0 is where that begins\n")
    assert inside("consume", "meta-test", "--group", "late", "--from", between.isoformat())[1] == b"c\n"


def test_what_comes_meanwhile_is_not_waited_for(metaq: Metaq, zookeeper: Chroot) -> None:
    """A topic that somebody fills faster than it is read has an end all the same: where it ended at first."""
    metaq("produce", "meta-test", stdin=b"first\n" * 3000)
    shown = 0
    with Client(zookeeper.connect) as client:
        producer = client.producer()
        for message in read_topic_messages(client, "meta-test", Span(), follow=False):
            if not shown % 100:
                producer.send("meta-test", b"later")
            assert message.payload == b"first"
            shown += 1
    assert shown == 3000


def test_a_broker_that_dies_in_the_middle_leaves_nothing_untold(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """Messages reported as stored are stored, and at most the reported ones are in doubt."""
    command = [*COMMAND, "produce", "meta-test", "--json", "--timeout", "4", "--zk", zookeeper.connect]
    pipe = subprocess.PIPE
    # Without a buffer: communicate() would not see what readline() had taken beyond its line.
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(b"%d\n" % number for number in range(2000)))
        told = [json.loads(process.stdout.readline()) for _ in range(10)]
        broker.kill()
        out, err = process.communicate(b"".join(b"%d\n" % number for number in range(2000, 4000)), timeout=60)
        assert process.returncode == 2
    told += [line for line in map(json.loads, out.splitlines()) if line["outcome"] == "stored"]
    match = re.search(
        rb"error: stopped after (\d+) messages, which are stored(?:; (\d+) more may be stored or not)?", err
    )
    assert match, err
    assert int(match[1]) == len(told)
    assert b"standard input, line " in err
    broker.start()
    shown = subprocess.run([*COMMAND, "consume", "meta-test", "--zk", zookeeper.connect], capture_output=True).stdout
    stored = shown.splitlines()
    assert stored[: len(told)] == [b"%d" % number for number in range(len(told))]
    assert len(told) <= len(stored) <= len(told) + int(match[2] or 0)


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that is killed at the end, or after two minutes, since a stuck one is silent."""
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        patience = threading.Timer(120, process.kill)
        patience.start()
        try:
            yield process
        finally:
            patience.cancel()
            process.kill()


@pytest.mark.parametrize("words", [["--group", "audit", "--follow"], ["--follow", "--from", "earliest"]])
def test_a_reader_of_an_absent_topic_is_told_at_once_and_goes_on_when_it_is_there(
    tmp_path: Path, zookeeper: Chroot, words: list[str]
) -> None:
    command = [*COMMAND, "consume", "orders", "--count", "1", *words, "--zk", zookeeper.connect]
    with running(command) as process:
        assert process.stderr is not None
        assert process.stderr.readline().decode() == (
            f"waiting: no broker offers orders in ZooKeeper {zookeeper.connect}: "
            "start one that does, or correct the name: see `metaq topics`\n"
        )
        with running_broker(tmp_path / "broker", zookeeper.connect):
            done = run_metaq_bytes("produce", "orders", "--zk", zookeeper.connect, stdin=b"at last\n")
            assert done.returncode == 0, done.stderr
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"at last\n", b"going on: orders can be read now\n")


def test_a_member_without_a_share_is_told_who_has_it(metaq: Metaq, zookeeper: Chroot) -> None:
    metaq("produce", "meta-test", stdin=b"one\n")
    command = [*COMMAND, "consume", "meta-test", "--group", "audit", "--follow", "--zk", zookeeper.connect]
    with running(command) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"one\n"
        with running(command) as second:
            assert first.stderr is not None
            assert second.stderr is not None
            said = {first.stderr: first, second.stderr: second}
            waiting = select.select(said, [], [], 60)[0][0]  # ids have process numbers, so either may be first in order
            assert waiting.readline() == (
                b"waiting: other members of group audit own every partition of meta-test: "
                b"see `metaq groups describe audit`\n"
            )
            (owner,) = (one for stream, one in said.items() if stream is not waiting)
            owner.terminate()
            assert waiting.readline() == b"going on: meta-test can be read now\n"


SYNC = (
    CONFIG
    + """
[replication]
mode = "sync"
timeout_ms = 300
silence_ms = 5000
heartbeat_ms = 100
"""
)


def test_what_waits_for_a_slave_is_told_apart_from_what_is_not_stored(tmp_path: Path, zookeeper: Chroot) -> None:
    """The way from the master to the only slave in sync is lost: messages are there, and seen once it is back."""
    words = ["produce", "meta-test", "--zk", zookeeper.connect, "--timeout", "1"]
    with Replicas(tmp_path / "pair", zookeeper.connect, SYNC, slaves=1) as replicas:
        wait_until(lambda: run_metaq_bytes(*words, stdin=b"zero\n").returncode == 0, "the slave is in sync")
        (link,) = replicas.links
        link.swallow()
        done = run_metaq_bytes(*words, "--json", stdin=b"one\ntwo\n")
        assert done.returncode == 3, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(it["line"], it["outcome"]) for it in told] == [(1, "not_replicated"), (2, "not_replicated")]
        assert b"error: stopped after 0 messages, which are stored; 2 more are on the master and not yet" in done.stderr
        assert b"not sent" not in done.stderr

        def is_refused() -> bool:
            nonlocal done
            done = run_metaq_bytes(*words, "--json", stdin=b"refused\n")
            return done.returncode == 2

        wait_until(is_refused, "the slave counts as silent")
        assert [json.loads(line)["outcome"] for line in done.stdout.splitlines()] == ["not_stored"]
        assert b"stopped after 0 messages, which are stored; 1 are not: standard input, line 1: " in done.stderr

        link.heal()
        read = ["consume", "meta-test", "--count", "3", "--zk", zookeeper.connect]
        wait_until(lambda: run_metaq_bytes(*read).stdout == b"zero\none\ntwo\n", "the slave has them")
