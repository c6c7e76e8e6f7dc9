"""TLS on a broker's ports: for threads, tasks, commands, slaves and scrapes; without it nobody gets anywhere."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meta_broker.net import tls_listener
from meta_client import Client
from meta_client.aio import Client as TaskClient
from meta_client.errors import ConnectionLost, InvalidSecurity, NotConnected
from meta_client.net.calls import wait_result
from meta_client.net.connection import Connection
from meta_client.net.opaques import next_opaque
from meta_client.net.security import Security
from meta_client.net.tls import TlsConfig
from meta_client.protocol.requests import Fetch, Put, Version
from meta_client.protocol.responses import Data
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker, wait_with
from tests.fixtures.certificates import Certificates
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, wait_until
from tests.fixtures.scrape import SERVED, WAIT_S
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import chroot
from zk.embedded.server import EmbeddedZooKeeper
from zk.tree.broker_url import BrokerUrl

MORE = "\n[admin]\nport = 0\n[topics.tasks]\n[topics.forks]\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, zookeeper_server: EmbeddedZooKeeper
) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker with TLS, and its ZooKeeper's connect string."""
    data = tmp_path_factory.mktemp("tls") / "broker"
    with (
        chroot(zookeeper_server.connect, "tls") as part,
        running_broker(data, part.connect, config=CONFIG + certificates.tls() + MORE) as broker,
    ):
        yield broker, part.connect


def url(broker: BrokerProcess) -> BrokerUrl:
    return BrokerUrl("127.0.0.1", broker.port)


def test_threads_send_and_consume(served: tuple[BrokerProcess, str], certificates: Certificates) -> None:
    _, connect = served
    with Client(connect, tls=TlsConfig(ca=certificates.ca)) as client:
        producer = client.producer()
        payloads = {b"a" * size for size in (1, 1000, 70_000, 1_000_000)}
        for payload in payloads:
            producer.send("orders", payload)
        for handle in [producer.send_async("invoices", b"%d" % number) for number in range(2000)]:
            handle.result(60)
        assert {message.payload for message in client.browse("orders")} == payloads
        assert len(list(client.browse("invoices"))) == 2000


def test_tasks_send_and_consume(served: tuple[BrokerProcess, str], certificates: Certificates) -> None:
    _, connect = served

    async def run() -> None:
        async with TaskClient(connect, tls=TlsConfig(ca=certificates.ca)) as client:
            producer = client.producer()
            await producer.send("tasks", b"x" * 300_000)
            assert [message.payload async for message in client.browse("tasks")] == [b"x" * 300_000]

    asyncio.run(run())


def test_a_long_poll_wakes_while_another_thread_sends(
    served: tuple[BrokerProcess, str], certificates: Certificates
) -> None:
    """On one connection: its reader waits inside TLS, and its writer must not wait for it."""
    security = Security(TlsConfig(ca=certificates.ca))
    with contextlib.closing(Connection.open(url(served[0]), 60, security)) as connection:
        waiting = connection.submit(Fetch("dynamic-poll", "g", 0, 0, 1 << 20, 1, 30_000, next_opaque()))
        stored = connection.submit(Put("dynamic-poll", 0, 0, None, None, next_opaque(), b"m" * 100_000))
        wait_result(stored, 60, "put")
        answer = waiting.wait(60)
        assert isinstance(answer, Data)
        assert len(answer.body) > 100_000


def test_commands_speak_it(
    served: tuple[BrokerProcess, str], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, connect = served
    shown = run_metaq("topics", "show", "meta-test", "--broker", broker.url, "--tls-ca", str(certificates.ca))
    assert shown.returncode == 0, shown.stderr
    refused = run_metaq("topics", "show", "meta-test", "--broker", broker.url)
    assert refused.returncode != 0
    assert "this port speaks TLS" in refused.stderr
    monkeypatch.setenv("METAQ_TLS_CA", str(certificates.ca))
    sent = run_metaq("produce", "meta-test", "--zk", connect, stdin="by a command\n")
    assert sent.returncode == 0, sent.stderr


def test_scrapes_speak_it(served: tuple[BrokerProcess, str], certificates: Certificates) -> None:
    match = SERVED.search(served[0].log)
    assert match is not None
    assert match[1].startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificates.ca)
    with urllib.request.urlopen(f"{match[1]}/health/live", timeout=WAIT_S, context=context) as answer:
        assert answer.status == 200
    with pytest.raises(OSError, match=r"reset|closed|EOF|refused|empty|without"):
        urllib.request.urlopen(match[1].replace("https", "http") + "/health/live", timeout=WAIT_S)


def test_a_plain_peer_is_told_and_nothing_is_done(served: tuple[BrokerProcess, str]) -> None:
    with WireClient(served[0].port) as client:
        assert client.result(Version(7)).text.startswith("this port speaks TLS")
        with pytest.raises(ConnectionError):
            client.receive()
    with (
        pytest.raises(ConnectionLost, match="this port speaks TLS"),
        contextlib.closing(Connection.open(url(served[0]), 60)) as connection,
    ):
        connection.submit(Put("orders", 0, 0, None, None, next_opaque(), b"plain")).wait(60)


@pytest.mark.parametrize("names", [(), ("b0.example",)], ids=["another CA", "another host"])
def test_a_broker_that_is_not_the_one_is_not_talked_to(
    names: tuple[str, ...], tmp_path: Path, certificates: Certificates
) -> None:
    other = Certificates(tmp_path / "other") if not names else certificates
    section = f'\n[tls]\ncertificate = "{other.server(*names)}"\n'
    with running_broker(tmp_path / "broker", None, config=CONFIG + section) as broker:
        tls = TlsConfig(ca=certificates.ca)
        with pytest.raises(NotConnected, match="certificate verify failed"):
            Connection.open(url(broker), 60, Security(tls))
        with pytest.raises(NotConnected, match="certificate verify failed"):
            Client.direct(f"127.0.0.1:{broker.port}", tls=tls)
        if names:
            unchecked = Security(TlsConfig(ca=certificates.ca, check_host=False))
            Connection.open(url(broker), 60, unchecked).close()


def test_a_required_certificate_of_a_client(tmp_path: Path, certificates: Certificates) -> None:
    more = 'client_certificates = "required"'
    with running_broker(tmp_path / "broker", None, config=CONFIG + certificates.tls(more)) as broker:
        tls = TlsConfig(ca=certificates.ca, certificate=certificates.client("shop"))
        with contextlib.closing(Connection.open(url(broker), 60, Security(tls))) as connection:
            wait_result(connection.submit(Version(next_opaque())), 60, "version")
        # TLS 1.3: the client learns of the refusal with the first answer
        with (
            pytest.raises((NotConnected, ConnectionLost)),
            contextlib.closing(Connection.open(url(broker), 60, Security(TlsConfig(ca=certificates.ca)))) as connection,
        ):
            connection.submit(Version(next_opaque())).wait(60)
        foreign = Certificates(tmp_path / "foreign").client("shop")
        with (
            pytest.raises((NotConnected, ConnectionLost)),
            contextlib.closing(
                Connection.open(url(broker), 60, Security(TlsConfig(ca=certificates.ca, certificate=foreign)))
            ) as connection,
        ):
            connection.submit(Version(next_opaque())).wait(60)


def test_a_slave_follows_its_master_and_a_plain_one_does_not(tmp_path: Path, certificates: Certificates) -> None:
    config = CONFIG + certificates.tls()
    secured = ReplicaProcess(tmp_path / "secured", None, 1, config)
    plain = ReplicaProcess(tmp_path / "plain", None, 2, CONFIG)
    with running_broker(tmp_path / "master", None, config=config) as master, ProxyLink(master.port) as link:
        try:
            for slave in (secured, plain):
                slave.link = link
                slave.start()
            wait_until(lambda: " following master=" in secured.log, "the slave follows")
            wait_until(lambda: "not following master=" in plain.log, "the plain one is refused")
            assert " following master=" not in plain.log.replace("not following master=", "")
        finally:
            secured.end()
            plain.end()


def test_a_reload_renews_the_certificate_and_keeps_the_old_one_when_it_is_bad(
    tmp_path: Path, certificates: Certificates
) -> None:
    own = Certificates(tmp_path / "own")
    with running_broker(tmp_path / "broker", None, config=CONFIG + own.tls()) as broker:
        security = Security(TlsConfig(ca=own.ca))
        with contextlib.closing(Connection.open(url(broker), 60, security)) as before:
            path = own.server()  # another key, in the same file
            path.write_text("no certificate")
            broker.hang_up()
            wait_until(lambda: "not reloaded, everything stays as it was" in broker.log, "the bad file is named")
            Connection.open(url(broker), 60, security).close()
            path.write_bytes(certificates.server().read_bytes())
            broker.hang_up()
            wait_until(lambda: "TLS renewed" in broker.log, "renewed")
            with pytest.raises(NotConnected, match="certificate verify failed"):
                Connection.open(url(broker), 60, security)
            Connection.open(url(broker), 60, Security(TlsConfig(ca=certificates.ca))).close()
            wait_result(before.submit(Version(next_opaque())), 60, "an earlier connection goes on")


def test_a_reload_keeps_a_certificate_that_holds_when_the_new_one_does_not(tmp_path: Path) -> None:
    """Nobody could connect with it: one that has ended, or has not begun by this clock."""
    own = Certificates(tmp_path / "own")
    now = datetime.now(UTC)
    with running_broker(tmp_path / "broker", None, config=CONFIG + own.tls()) as broker:
        for begins, ends in ((None, now - timedelta(days=1)), (now + timedelta(days=1), None)):
            before = len(broker.log)
            own.server(begins=begins, ends=ends)
            broker.hang_up()
            wait_with(lambda: "reloaded file=" in broker.log_from(before), broker)  # noqa: B023 - called at once
            assert "TLS not renewed, the former certificate stays" in broker.log_from(before)
            Connection.open(url(broker), 60, Security(TlsConfig(ca=own.ca))).close()


def test_plain_connections_from_where_they_are_allowed(tmp_path: Path, certificates: Certificates) -> None:
    more = 'plain_from = ["127.0.0.1", "10.0.0.0/8"]'
    with running_broker(tmp_path / "broker", None, config=CONFIG + certificates.tls(more)) as broker:
        with WireClient(broker.port) as client:
            client.put("meta-test", 0, b"plain")
        security = Security(TlsConfig(ca=certificates.ca))
        Connection.open(url(broker), 60, security).close()
        with socket.create_connection(("127.0.0.1", broker.port), source_address=("127.0.0.2", 0)) as elsewhere:
            elsewhere.sendall(b"version 7\r\n")
            assert b"this port speaks TLS" in elsewhere.recv(1000)


def test_handshakes_that_do_not_end_keep_nobody_out(
    served: tuple[BrokerProcess, str], certificates: Certificates
) -> None:
    """The oldest of too many is dropped; nothing of them is left."""
    broker = served[0]
    security = Security(TlsConfig(ca=certificates.ca))
    before = sockets_of(broker)
    with contextlib.ExitStack() as opened:
        for number in range(tls_listener.HANDSHAKES_MAX + 200):
            stranger = opened.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=60))
            stranger.sendall(b"\x16\x03\x01" if number % 2 else b"")
        started = time.monotonic()
        with contextlib.closing(Connection.open(url(broker), 60, security)) as connection:
            wait_result(connection.submit(Version(next_opaque())), 60, "version")
        assert time.monotonic() - started < tls_listener.HANDSHAKE_S
        assert sockets_of(broker) < before + tls_listener.HANDSHAKES_MAX + 100
    wait_until(lambda: sockets_of(broker) <= before + 5, "the descriptors are free again")


def test_handshakes_of_one_address_end_those_of_no_other(
    served: tuple[BrokerProcess, str], certificates: Certificates
) -> None:
    """Though ours began first, and takes its time."""
    context = TlsConfig(ca=certificates.ca).context()
    with contextlib.ExitStack() as opened:
        ours = opened.enter_context(socket.create_connection(("127.0.0.1", served[0].port), timeout=60))
        for _ in range(tls_listener.HANDSHAKES_MAX + 200):
            source = ("127.0.0.2", 0)
            opened.enter_context(socket.create_connection(("127.0.0.1", served[0].port), 60, source))
        with context.wrap_socket(ours, server_hostname="127.0.0.1") as encrypted:
            encrypted.sendall(b"version 1\r\n")
            assert encrypted.recv(1000).startswith(b"result 200 ")


def sockets_of(broker: BrokerProcess) -> int:
    """Return how many sockets a broker has open. Files come and go with checkpoints."""
    found = 0
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


FORK = """
import os, sys
from meta_client import Client
from meta_client.net.tls import TlsConfig
from zk.forks import CreatedBeforeFork

client = Client(sys.argv[1], tls=TlsConfig(ca=sys.argv[2]))
producer = client.producer()
producer.send("forks", b"before")
if not (child := os.fork()):
    try:
        producer.send("forks", b"child")
    except CreatedBeforeFork:
        client.close()
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
producer.send("forks", b"after")
print(sorted(message.payload for message in client.browse("forks")))
client.close()
"""


def test_a_forked_child_says_nothing_on_its_parents_connection(
    served: tuple[BrokerProcess, str], certificates: Certificates
) -> None:
    arguments = [sys.executable, "-c", FORK, served[1], str(certificates.ca)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[b'after', b'before']\n", 0), done.stderr


def test_files_that_cannot_be_used_are_named(tmp_path: Path, certificates: Certificates) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for config in (TlsConfig(ca=tmp_path / "none.pem"), TlsConfig(ca=certificates.ca, certificate=empty)):
        with pytest.raises(InvalidSecurity, match=r"none\.pem|empty\.pem"):
            Client.direct("127.0.0.1:1", tls=config)
    with pytest.raises(InvalidSecurity, match="needs its certificate"):
        TlsConfig(ca=certificates.ca, key=empty).context()
