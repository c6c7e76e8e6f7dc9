"""`metaq produce` and `consume` as a shell runs them, against a real broker."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.broker import BrokerProcess
from zk.corner import Corner

Metaq = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-m", "meta_client.cli.main"]


@pytest.fixture
def metaq(zookeeper: Corner, broker: BrokerProcess) -> Metaq:
    """Run `metaq` on the test's ZooKeeper, with a broker that has `orders`, `invoices` and `meta-test`."""
    del broker

    def run(*words: str, stdin: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
        command = [*COMMAND, *words, "--zk", zookeeper.connect]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
        assert done.returncode == status, done.stderr.decode()
        return done

    return run


def test_lines_in_lines_out(metaq: Metaq) -> None:
    lines = [b"first", b"", b"caf\xc3\xa9", b"\xff\xfe no utf-8", b"last, without a line's end"]
    done = metaq("produce", "orders", stdin=b"first\n\r\ncaf\xc3\xa9\r\n\xff\xfe no utf-8\nlast, without a line's end")
    assert done.stderr.startswith(b"sent 5 messages to orders in ")
    assert done.stdout == b""
    assert sorted(metaq("consume", "orders").stdout.removesuffix(b"\n").split(b"\n")) == sorted(lines)
    assert sorted(metaq("consume", "orders").stdout.removesuffix(b"\n").split(b"\n")) == sorted(lines)


def test_json_tells_everything(metaq: Metaq, tmp_path: Path) -> None:
    source = tmp_path / "orders.csv"
    source.write_bytes(b'536365,"6 lanterns, white"\n"5,36366",x\n')
    metaq("produce", "meta-test", "--file", str(source), "--key-column", "1")
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


def test_latest_shows_only_what_comes(metaq: Metaq, zookeeper: Corner) -> None:
    metaq("produce", "meta-test", stdin=b"old\n")
    command = [*COMMAND, "consume", "meta-test", "--from", "latest", "--count", "1", "--zk", zookeeper.connect]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            metaq("produce", "meta-test", stdin=b"new\n")
        assert process.communicate(timeout=10)[0] == b"new\n"
        assert process.returncode == 0


def test_ctrl_c_ends_following_quietly_and_stores_what_was_shown(metaq: Metaq, zookeeper: Corner) -> None:
    metaq("produce", "meta-test", stdin=b"one\ntwo\n")
    command = [*COMMAND, "consume", "meta-test", "--group", "audit", "--follow", "--zk", zookeeper.connect]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"one\n", b"two\n"]
        process.send_signal(2)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")
    assert metaq("consume", "meta-test", "--group", "audit").stdout == b""


def test_a_reader_that_goes_away_is_no_error(metaq: Metaq, zookeeper: Corner) -> None:
    metaq("produce", "orders", stdin=b"x" * 100 + b"\n" + (b"y" * 60_000 + b"\n") * 20)
    for group in ([], ["--group", "audit"]):
        words = " ".join([*COMMAND, "consume", "orders", *group, "--zk", zookeeper.connect])
        done = subprocess.run(["/bin/sh", "-c", f"{words} | head -c 1"], capture_output=True, timeout=60)
        assert (len(done.stdout), done.stderr) == (1, b"")


def test_a_long_line_and_a_bad_one_say_where(metaq: Metaq) -> None:
    done = metaq("produce", "orders", stdin=b"good\n" + b"x" * (2_097_153) + b"\n", status=2)
    assert done.stderr == (
        b"error: stopped after 1 messages, which are stored: "
        b"line 2 is longer than 2097152 bytes, the most a message may have\n"
    )
    done = metaq("produce", "orders", "--key-column", "2", stdin=b"a,b\nc\n", status=2)
    assert b"line 2 has 1 columns, --key-column is 2" in done.stderr


def test_nothing_to_send_is_fine_for_a_topic_that_there_is(metaq: Metaq) -> None:
    assert metaq("produce", "orders").stderr.startswith(b"sent 0 messages to orders in ")
    done = metaq("produce", "bad topic", status=2)
    assert b"send to bad topic: no broker offers this topic: start one that does, or correct the name" in done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["produce", "nothing"], b"send to nothing: no broker offers this topic"),
        (["produce", "orders", "--file", "/proc/self/mem"], b"Input/output error"),
        (["consume", "nothing"], b"read nothing: no broker offers this topic"),
        (["consume", "orders", "--from", "stored"], b"--from stored needs --group"),
        (["consume", "orders", "--group", "a.b"], b"Group name has invalid character '.'"),
        (["produce", "orders", "--attribute", "a", "--key-column", "1"], b"exclude each other"),
    ],
)
def test_what_goes_wrong_is_one_line(metaq: Metaq, words: list[str], error: bytes) -> None:
    done = metaq(*words, stdin=b"line\n", status=2)
    assert error in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"error: ")
