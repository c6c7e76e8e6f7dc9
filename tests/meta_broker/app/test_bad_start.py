"""A broker that cannot start says why in one line, exits with 2, and has touched nothing."""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from journal.wal.scan import Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.small_disk import small_disk
from tests.fixtures.wire import WireClient
from tests.fixtures.zookeeper_tree import snapshot
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

# Drops what lets root ignore permissions, for good, and becomes the broker. 24 is PR_CAPBSET_DROP, 1 and 2 are
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
WITHOUT_PRIVILEGE = """
import ctypes, os, sys
for capability in (1, 2):
    assert os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start(*words: object, prefix: Sequence[str] = ()) -> str:
    """The one line that a start which must fail says, without its `error: `."""
    command = ["broker", *map(str, words)]
    if prefix:
        command = [*prefix, "-m", "meta_client.cli.main", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    else:
        done = run_metaq(*command)
    assert done.returncode == 2, done
    assert done.stdout == "", done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: "), done.stderr
    return lines[0].removeprefix("error: ")


def content(directory: Path) -> dict[str, tuple[int, str]]:
    """Every file and folder below *directory*, with its mode and the digest of its bytes."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The directory of a broker 0 that was stopped cleanly, with messages in three segments."""
    with running_broker(tmp_path / "kept", None) as broker, WireClient(broker.port) as client:
        for _ in range(9):
            client.put("orders", 0, bytes(1 << 20))
        assert broker.stop() == 0
    assert len(list((tmp_path / "kept").glob("*.journal"))) > 2
    return tmp_path / "kept"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[broker\n", "not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"),
        ("[topics.orders]\npartitons = 4\n", "unknown key topics.orders.partitons: did you mean 'partitions'?"),
    ],
)
def test_a_bad_configuration(text: str, line: str, tmp_path: Path, zookeeper: Chroot) -> None:
    (tmp_path / "bad.toml").write_text(text)
    words = ("--data", tmp_path / "data", "--id", 0, "--config", tmp_path / "bad.toml", "--zk", zookeeper.connect)
    assert start(*words) == f"{tmp_path}/bad.toml: {line}"
    assert not (tmp_path / "data").exists()


def test_a_directory_of_another_broker_or_cluster(kept: Path, config: Path, zookeeper: Chroot, tmp_path: Path) -> None:
    before = content(kept)
    first = next(iter(sorted(kept.glob("*.journal"))))
    words = ("--data", kept, "--port", 0, "--zk", zookeeper.connect)
    assert start(*words, "--id", 1, "--config", config) == (
        f"{first} belongs to broker 0 of cluster 'metaq', not to broker 1 of cluster 'metaq': start that broker here, "
        "or give this one its own --data directory"
    )
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace("[broker]\n", "[broker]\ncluster = 'prod'\n"))
    assert start(*words, "--id", 0, "--config", other).startswith(
        f"{first} belongs to broker 0 of cluster 'metaq', not to broker 0 of cluster 'prod': "
    )
    assert content(kept) == before
    assert registered(zookeeper) == {}


def registered(zookeeper: Chroot) -> dict[str, tuple[bytes, bool]]:
    with ZooKeeperSession(zookeeper.connect) as session:
        return snapshot(session, "/")


def test_a_directory_in_use(zookeeper: Chroot, config: Path, tmp_path: Path) -> None:
    patient = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 60000")
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=patient) as broker,
        WireClient(broker.port) as client,
    ):
        before = registered(zookeeper)
        client.put("orders", 0, b"before")
        assert start("--data", broker.data, "--id", 0, "--port", 0, "--config", config, "--zk", zookeeper.connect) == (
            f"{broker.data} is in use by another process: stop that broker first, or give this one its own directory"
        )
        client.put("orders", 0, b"after")
        assert [message.payload for _, message in client.read_all("orders", 0)] == [b"before", b"after"]
        assert registered(zookeeper) == before


def test_a_port_in_use(kept: Path, config: Path, zookeeper: Chroot, tmp_path: Path) -> None:
    before = content(kept)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--id", 0, "--port", port, "--config", config, "--zk", zookeeper.connect)
        line = (
            f"cannot listen on 127.0.0.1:{port}: Address already in use: stop what uses that port, "
            "or choose another with --port (0: any free one)"
        )
        assert start("--data", kept, *words) == line
        assert start("--data", tmp_path / "new", *words) == line
    assert content(kept) == before
    assert not (tmp_path / "new").exists()
    assert registered(zookeeper) == {}


def test_an_address_of_another_machine(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace("[broker]\n", "[broker]\nhost = '203.0.113.1'\ninsecure = true\n"))
    assert start("--data", tmp_path / "new", "--id", 0, "--port", 0, "--config", config) == (
        "cannot listen on 203.0.113.1:0: Cannot assign requested address: "
        "set broker.host to a name or address of this machine"
    )


def test_no_zookeeper(kept: Path, config: Path, tmp_path: Path) -> None:
    before = content(kept)
    config.write_text(CONFIG.replace("[zookeeper]\n", "[zookeeper]\nconnect_timeout_ms = 500\n"))
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        connect = f"127.0.0.1:{reserved.getsockname()[1]}"
        words = ("--id", 0, "--port", 0, "--config", config, "--zk")
        line = f"no ZooKeeper at {connect} within 0.5 s: start one with `metaq zookeeper`, or name another with --zk"
        assert start("--data", kept, *words, connect) == line
        assert start("--data", tmp_path / "new", *words, connect) == line
    assert start("--data", kept, *words, "host:port").startswith("'host:port' is no ZooKeeper connect string")
    assert content(kept) == before
    assert not (tmp_path / "new").exists()


def test_a_corrupt_journal(kept: Path, config: Path, zookeeper: Chroot) -> None:
    first, second = sorted(kept.glob("*.journal"))[:2]
    lsn = messages_begin(kept)
    for path in kept.glob("checkpoint.*"):
        path.unlink()  # so that the whole journal is read
    with first.open("r+b") as file:
        file.seek(lsn + 500)
        file.write(b"\x01")
    before = content(kept)
    words = ("--data", kept, "--id", 0, "--port", 0, "--config", config, "--zk", zookeeper.connect)
    line = start(*words)
    expected = (
        rf"{re.escape(str(kept))}: the journal is corrupt at LSN {lsn} \(body checksum\): acknowledged bytes from "
        r"there to LSN \d+ do not read back; nothing was changed: keep a copy and "
        r"run `metaq journal check`, then `repair`"
    )
    assert re.fullmatch(expected, line), line
    second.unlink()
    assert "a segment is missing" in start(*words)
    assert content(kept) == {name: facts for name, facts in before.items() if name != second.name}
    assert registered(zookeeper) == {}


def messages_begin(directory: Path) -> int:
    """The LSN of the first record that holds a message."""
    storage = DirectoryStorage.open_for_reading(directory)
    segments = Segments.open(storage, None, 4 << 20, writable=False)
    try:
        return next(entry.header.lsn for entry in Scanner(segments, segments.start) if entry.header.body_bytes > 500)
    finally:
        segments.close()


REMEDY = "give --data a directory that this user can read and write"


def test_a_directory_that_cannot_be_made(config: Path, tmp_path: Path) -> None:
    words = ("--id", 0, "--port", 0, "--config", config)
    assert start("--data", config / "below", *words) == f"{config}/below: Not a directory: {REMEDY}"


@pytest.mark.parametrize(
    ("what", "mode", "where"),
    [
        ("", 0o000, ""),
        ("", 0o555, ""),
        ("00000000000000000000.journal", 0o000, "00000000000000000000.journal"),
        ("00000000000000000000.journal", 0o444, "00000000000000000000.journal"),
    ],
)
def test_a_directory_without_permission(what: str, mode: int, where: str, kept: Path, config: Path) -> None:
    before = content(kept)
    path = kept / what
    usual = path.stat().st_mode
    path.chmod(mode)
    line = start(
        *("--data", kept, "--id", 0, "--port", 0, "--config", config), prefix=[sys.executable, "-c", WITHOUT_PRIVILEGE]
    )
    path.chmod(usual)
    assert line == f"{kept / where}: Permission denied: {REMEDY}"
    assert content(kept) == before


def test_a_disk_without_room(config: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m"):
        line = start("--data", tmp_path / "disk" / "new", "--id", 0, "--port", 0, "--config", config)
        assert "No space left on device: make room there, or give --data a directory on a larger disk" in line
        assert REMEDY not in line


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace, which has an fsync fail")
def test_a_disk_that_fails(kept: Path, config: Path) -> None:
    failing = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", sys.executable]
    line = start("--data", kept, "--id", 0, "--port", 0, "--config", config, prefix=failing)
    assert "Input/output error: the disk is failing: see the kernel's log" in line
    assert REMEDY not in line


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace, which has a lock refused")
@pytest.mark.parametrize(
    ("error", "text"), [("EOPNOTSUPP", "Operation not supported"), ("ENOLCK", "No locks available")]
)
def test_a_file_system_without_locks(error: str, text: str, tmp_path: Path) -> None:
    without = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject=flock:error={error}", sys.executable]
    line = start("--data", tmp_path / "data", "--id", 0, "--port", 0, prefix=without)
    remedy = "give --data a directory on a disk of this machine, or on a file system whose locks work"
    assert line == f"{tmp_path}/data: cannot be locked: {text}: {remedy}"


def test_a_limit_of_open_files_that_is_too_low(tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -n 16; exec "$0" "$@"', sys.executable]
    line = start("--data", tmp_path / "data", "--id", 0, "--port", 0, prefix=limited)
    assert line == f"{tmp_path}/data: Too many open files: raise the limit of open files (ulimit -n)"


def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """Nobody could be told of it: the broker would not report its journal's end, nor take a back-up."""
    directory = tmp_path / os.fsdecode(b"b\xff")
    said = start("--data", directory, "--id", 0, "--port", 0)
    assert said == f"--data {tmp_path}/b\\udcff: its path is not UTF-8: rename what is not, or name another"
    assert not directory.exists()
