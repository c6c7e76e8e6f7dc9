"""One cluster for the tests of a module: two brokers, one with a slave, PostgreSQL, crashed services, hostile names."""

import contextlib
import itertools
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kazoo.client import KazooClient
from psycopg import sql
from starlette.testclient import TestClient

from journal.records.xid import Xid
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client import Client
from meta_client.console.access import AccessRules, hosts_of
from meta_client.console.reads import Reads
from meta_client.console.server import make_app
from meta_client.console.settings import ConsoleSettings
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import Forked, start_metaq, start_module
from tests.fixtures.postgres import Database
from tests.fixtures.replicas import Replicas, wait_until
from tests.meta_client.coordinator.conftest import STEADY
from tests.meta_client.transactions.conftest import BILLS, Deciding, make_postgres
from zk.brokers.cluster import read_broker
from zk.embedded.chroot import chroot
from zk.embedded.server import EmbeddedZooKeeper

AGE_S = 0.3
PORT = 8300
URL = re.compile(r"console at (http://\S+)\n")
WAIT_S = 60
HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
TOKEN = "a-token-of-the-tests"
ORIGIN = f"http://127.0.0.1:{PORT}"
SCRIPT = "<script>alert(1)<!--"  # a node's name has no slash
PAYLOAD = b"</script><script>alert('payload')</script><img src=x onerror=alert(2)>"
ATTRIBUTE = "<b onmouseover=alert(3)>key</b>"
FOREIGN = Xid.of("<i>order</i>", "mq")
_numbers = itertools.count(1)


@dataclass
class Stack:
    """Cluster that the console looks at."""

    zookeeper: str
    replicas: Replicas
    other: BrokerProcess
    deciding: Deciding
    client: Client
    silent_url: str  # listens, and never answers

    def settings(self, *, allows_changes: bool = False, **more: object) -> ConsoleSettings:
        known: dict[str, Any] = {"databases": (self.deciding.url,), "age_s": AGE_S, "allows_changes": allows_changes}
        return ConsoleSettings(client=self.client, who="ann@<b>host</b>", **known | more)

    def kill_a_service(self, number: int, step: str) -> None:
        """A service that works on transaction *number* dies at *step*."""
        words = ("psycopg", self.deciding.url, self.zookeeper, str(number), step)
        assert start_module("tests.meta_client.transactions.crashing", *words).wait() == -9

    def zookeeper_client(self) -> contextlib.AbstractContextManager[KazooClient]:
        return zookeeper_client(self.zookeeper)

    def register_silent(self, broker_id: int) -> None:
        with zookeeper_client(self.zookeeper) as zk:
            zk.create(f"/meta/brokers/ids/{broker_id}/master", self.silent_url.encode(), makepath=True)

    def forget_silent(self, broker_id: int) -> None:
        with zookeeper_client(self.zookeeper) as zk:
            zk.delete(f"/meta/brokers/ids/{broker_id}", recursive=True)


@contextlib.contextmanager
def zookeeper_client(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect, timeout=60)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def module_database(postgres_server: EmbeddedPostgres) -> Database:
    name = f"console_{next(_numbers)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(postgres_server.dsn, dbname=name)
    return Database(dsn, lambda: psycopg.connect(dsn))


@pytest.fixture(scope="module")
def stack(
    zookeeper_server: EmbeddedZooKeeper, module_database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    where = tmp_path_factory.mktemp("console")
    with contextlib.ExitStack() as opened:
        part = opened.enter_context(chroot(zookeeper_server.connect, f"console-{next(_numbers)}"))
        replicas = opened.enter_context(Replicas(where / "replicas", part.connect, STEADY))
        other = opened.enter_context(running_broker(where / "other", part.connect, broker_id=1, config=BILLS))
        deciding = make_postgres(module_database)
        client = opened.enter_context(Client(part.connect))
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"meta://127.0.0.1:{silent.getsockname()[1]}"
        stack = Stack(part.connect, replicas, other, deciding, client, url)
        fill(stack)
        yield stack


def fill(stack: Stack) -> None:
    """Messages, a group, a branch of a foreign manager, and two crashed services; hostile names and contents."""
    with Client(stack.zookeeper) as client:
        sender = client.producer()
        for number in range(150):
            sender.send("orders", f'{{"order": {number}, "sum": "12.50"}}'.encode(), f"key-{number}", partition="0-0")
        sender.send("orders", PAYLOAD, ATTRIBUTE, partition="0-1")
        sender.send("orders", bytes(range(256)) * 300, partition="0-2")
        branch = client.producer(qualifier="<u>shop</u>")
        branch.tpc_begin(FOREIGN, topics=("orders",))
        branch.send("orders", PAYLOAD, ATTRIBUTE, partition="0-0")
        branch.tpc_prepare()
    for number, step in enumerate(("PREPARED", "DECIDED"), 1):
        stack.kill_a_service(number, step)
    with zookeeper_client(stack.zookeeper) as zk:
        for kind in ("topics-pub", "topics-sub"):
            zk.create(f"/meta/brokers/{kind}/{SCRIPT}/0-m", b"1", makepath=True)
        zk.create(f"/meta/consumers/{SCRIPT}/ids/{SCRIPT}_host-1", SCRIPT.encode(), makepath=True)
        for group in ("billing", SCRIPT):
            zk.create(f"/meta/consumers/{group}/offsets/orders/0-0", b"0-0", makepath=True)
            zk.create(f"/meta/consumers/{group}/owners/orders/0-0", f"{SCRIPT}-owner".encode(), makepath=True)
    (slave,) = stack.replicas.slaves
    wait_until(lambda: stack.replicas.is_in_sync(slave), "the slave follows")
    # It does so before it registers, which readers are told of.
    wait_until(lambda: slave.number in read_broker(stack.client.session, 0).slaves, "the slave is registered")


def started_console(zookeeper: str, out: "tempfile._TemporaryFileWrapper[bytes]", *words: str) -> tuple[Forked, str]:
    """Start the command; return it and the URL that it prints."""
    with Path(os.devnull).open("rb") as nothing:
        process = start_metaq(["console", "--zk", zookeeper, *words], stdin=nothing, stdout=out.file, stderr=out.file)
    deadline = time.monotonic() + WAIT_S
    while (match := URL.search(said := Path(out.name).read_text())) is None:
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
    return process, match[1]


def open_console(settings: ConsoleSettings, *, has_cookie: bool = True) -> TestClient:
    """A console without a socket, as a browser that has, or has not, been let in."""
    rules = AccessRules(TOKEN, hosts_of("127.0.0.1", PORT), PORT, settings.allows_changes)
    cookies = {rules.cookie: TOKEN} if has_cookie else {}
    return TestClient(make_app(settings, rules), base_url=ORIGIN, cookies=cookies, follow_redirects=False)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that waits for every answer: on a busy machine a broker takes longer than its reader's patience."""
    call_within = Reads.call
    monkeypatch.setattr(Reads, "call", lambda reads, key, call, _=None: call_within(reads, key, call, WAIT_S))
    monkeypatch.setattr("meta_client.console.brokers.LIMIT_S", WAIT_S)


@pytest.fixture
def hurried(stack: Stack) -> Iterator[TestClient]:
    """Like `browser`, with the limits that the command has."""
    with open_console(stack.settings()) as client:
        yield client


@pytest.fixture
def browser(stack: Stack, patient: None) -> Iterator[TestClient]:
    """A console that only reads, and a browser that was let in."""
    with open_console(stack.settings()) as client:
        yield client


@pytest.fixture
def changing(stack: Stack, patient: None) -> Iterator[TestClient]:
    """A console that allows changes."""
    with open_console(stack.settings(allows_changes=True)) as client:
        yield client
