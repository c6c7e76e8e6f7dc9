"""A login at ZooKeeper and TLS: nodes that others read and do not change; a doctor that lists those anybody may."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from meta_client import Client
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.certificates import Certificates
from tests.fixtures.forked import run_metaq
from zk.embedded.chroot import Chroot
from zk.errors import RefusedNode, ZooKeeperError
from zk.session.security import ZooKeeperSecurity
from zk.session.session import ZooKeeperSession

LOGIN = ZooKeeperSecurity(user="metaq", password="a s3cret")


def test_what_is_made_with_a_login_is_changed_with_it_alone(zookeeper: Chroot) -> None:
    with (
        ZooKeeperSession(zookeeper.connect, security=LOGIN) as ours,
        ZooKeeperSession(zookeeper.connect) as stranger,
        ZooKeeperSession(zookeeper.connect, security=ZooKeeperSecurity(user="metaq", password="wrong")) as guesser,
    ):
        ours.write("/meta/metaq/node", b"ours")
        ours.create("/meta/metaq/ephemeral", b"ours", ephemeral=True)
        stranger.write("/meta-2/node", b"anybody's")
        for other in (stranger, guesser):
            node = other.read("/meta/metaq/node")
            assert node is not None
            assert node.data == b"ours"
            changes: list[tuple[Callable[..., object], str]] = [
                (other.write, "/meta/metaq/node"),
                (other.delete, "/meta/metaq/node"),
                (other.delete, "/meta/metaq/ephemeral"),
                (other.create, "/meta/metaq/another"),
            ]
            for change, path in changes:
                with pytest.raises(RefusedNode):
                    change(path, *([b"theirs"] if change == other.write else []))
        paths = ["/meta", "/meta/metaq", "/meta/metaq/node", "/meta/metaq/ephemeral", "/meta-2/node"]
        assert [path for path in paths if stranger.is_open(path)] == ["/meta-2/node"]
        ours._client.delete("/meta", recursive=True)  # which the fixture may not
    assert "s3cret" not in repr(LOGIN)


def test_a_broker_a_client_and_the_doctor_log_in(
    zookeeper: Chroot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("a s3cret\n")
    section = f'[zookeeper]\nuser = "metaq"\npassword_file = "{password}"'
    config = CONFIG.replace("[zookeeper]", section)
    with running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker:
        with Client(zookeeper.connect, zookeeper_security=LOGIN) as client:
            client.producer().send("orders", b"m")
            consumer = client.consumer("billing")
            received = threading.Event()
            consumer.subscribe("orders", lambda message: received.set())
            consumer.start()
            assert received.wait(60)
        monkeypatch.setenv("METAQ_ZK_USER", "metaq")
        monkeypatch.setenv("METAQ_ZK_PASSWORD_FILE", str(password))
        done = run_metaq("doctor", "zookeeper", "--zk", zookeeper.connect)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch("every node in ZooKeeper, of cluster [0-9a-f-]{36}, can be read\n", done.stdout)
        with ZooKeeperSession(zookeeper.connect) as stranger:
            with pytest.raises(RefusedNode):
                stranger.create("/meta/brokers/ids/7")
            assert not stranger.is_open("/meta/brokers/ids/0/master")
        with ZooKeeperSession(zookeeper.connect, security=LOGIN) as ours, ZooKeeperSession(zookeeper.connect) as other:
            ours._client.set_acls("/meta/brokers", [*ours._client.get_acls("/meta/brokers")[0], _anybody()])
            other.write("/meta/brokers/foreign", b"x")
        listed = run_metaq("doctor", "zookeeper", "--zk", zookeeper.connect, "--json")
        assert listed.returncode == 1
        assert [line.split('"')[3] for line in listed.stdout.splitlines()] == ["/meta/brokers", "/meta/brokers/foreign"]
        assert "s3cret" not in broker.log + listed.stdout + listed.stderr
    with ZooKeeperSession(zookeeper.connect, security=LOGIN) as ours:
        ours._client.delete("/meta", recursive=True)


def _anybody() -> object:
    from kazoo.security import make_acl

    return make_acl("world", "anyone", create=True)


@contextmanager
def tls_in_front_of(connect: str, certificate: Path) -> Iterator[int]:
    """A port that speaks TLS and leads to ZooKeeper."""
    host, port = connect.partition("/")[0].split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted = listening.accept()[0]
                try:
                    client = context.wrap_socket(accepted, server_side=True)
                except OSError:  # it does not trust the certificate
                    accepted.close()
                    continue
                server = socket.create_connection((host, int(port)))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(60)


def test_a_session_over_tls_and_none_with_a_server_of_another_ca(
    zookeeper: Chroot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, others = Certificates(tmp_path / "ca"), Certificates(tmp_path / "others")
    chroot = zookeeper.connect.partition("/")[2]
    with tls_in_front_of(zookeeper.connect, certificates.server()) as port:
        connect = f"127.0.0.1:{port}/{chroot}"
        with ZooKeeperSession(connect, security=ZooKeeperSecurity(ca=certificates.ca)) as session:
            session.write("/meta/over-tls", b"x" * 100_000)
            node = session.read("/meta/over-tls")
            assert node is not None
            assert len(node.data) == 100_000
        # In processes of their own: kazoo leaves the sockets of failed handshakes to the garbage collector.
        for ca, status, says in ((certificates.ca, 0, ""), (others.ca, 2, "no ZooKeeper at")):
            monkeypatch.setenv("METAQ_ZK_TLS_CA", str(ca))
            done = run_metaq("doctor", "zookeeper", "--zk", connect)
            assert (done.returncode, says in done.stderr) == (status, True), done.stderr


@pytest.mark.parametrize(
    "options", [{"user": "a"}, {"password": "a"}, {"user": "a:b", "password": "c"}, {"ca": "none.pem"}, {"key": "k"}]
)
def test_what_cannot_be_used_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ZooKeeperError):
        ZooKeeperSecurity(**options)  # type: ignore[arg-type]
