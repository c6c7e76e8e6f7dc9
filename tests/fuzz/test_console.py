"""A console process under damaged requests: refused as a client's mistake, never a hang, never a changed broker.

Pages that are asked for with the token are answered; all else is 4xx or an end. A failure prints METAQ_FUZZ_SEED.
"""

import contextlib
import re
import select
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from journal.records.xid import Xid
from meta_client import Client
from meta_client.console.access import AccessRules
from meta_client.console.connection import REQUEST_S_MAX
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import Forked
from tests.fixtures.peers import MIB, anonymous_bytes
from tests.fixtures.scrape import ADMIN, Scrape, admin_url
from tests.fuzz.inputs import INPUTS, SEED
from tests.fuzz.streams import cuts
from tests.fuzz.test_inputs import Growth, seeded
from tests.fuzz.web import Keys, request
from tests.meta_client.console.conftest import started_console
from zk.embedded.chroot import Chroot

SHARE = 0.0003  # of INPUTS
REQUESTS = max(200, round(INPUTS * SHARE))
TOGETHER = 6
OPEN_MAX = 100  # connections that wait for more, as slow clients do
PATIENCE_S = 60.0
QUIET_S = 0.3
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CONFIG = ADMIN.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 86400.0")  # which the journal notes
OFFSETS = "/meta/consumers/billing/offsets/orders/0-0"

pytestmark = pytest.mark.timeout(600 + INPUTS / 1000)


class State:
    """All that a console may change: the journal of the broker, and the group's offsets."""

    def __init__(self, broker: BrokerProcess, client: Client) -> None:
        self._broker, self._client = broker, client
        self._before = self._now()

    def _now(self) -> tuple[float | None, bytes]:
        node = self._client.session.read(OFFSETS)
        assert node is not None
        return Scrape(admin_url(self._broker)).get("metaq_journal_end_lsn"), node.data

    def check(self) -> None:
        assert self._now() == self._before


@contextlib.contextmanager
def console(zookeeper: str) -> Iterator[tuple[Forked, Keys, Path]]:
    """A console that allows changes. The caller ends it; its output is in the path."""
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper, out, "--allow-changes", "--age", "0")
        port, token = int(re.findall(r":(\d+)/", url)[0]), url.partition("token=")[2]
        rules = AccessRules(token, frozenset(), port)
        try:
            yield process, Keys(port, token, rules.csrf, ""), Path(out.name)
        finally:
            process.kill()
            process.wait()


def test_damaged_requests_are_refused_and_change_nothing(tmp_path: Path, zookeeper: Chroot) -> None:
    count, seed = 0, SEED
    statuses: dict[int, int] = {}
    still_open: deque[tuple[int, bytes, socket.socket]] = deque()
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG) as broker,
        Client(zookeeper.connect) as client,
        console(zookeeper.connect) as (process, keys, out),
        ThreadPoolExecutor(TOGETHER) as together,
    ):
        keys = Keys(keys.port, keys.token, keys.csrf, prepare(client))
        state, growth = State(broker, client), Growth(process.pid)
        while count < REQUESTS:
            seeds = range(seed, seed + 8 * TOGETHER)
            for number, data, peer, status in together.map(lambda each: converse(keys, each), seeds):
                if status is None:
                    still_open.append((number, data, peer))
                else:
                    peer.close()
                    statuses[status] = statuses.get(status, 0) + 1
            count, seed = count + len(seeds), seeds.stop
            if len(still_open) > OPEN_MAX:
                oldest = [still_open.popleft() for _ in range(OPEN_MAX // 2)]
                list(together.map(lambda each: end(keys, *each), oldest))
            growth.check(count / REQUESTS)
            with seeded("a request before", seed):
                state.check()
                said = out.read_text()
                assert said.count("\n") == 2 + said.count(" change "), said[-3000:]
        list(together.map(lambda each: end(keys, *each), still_open))
        state.check()
        shown = ", ".join(f"{number} {status or 'ended'}" for status, number in sorted(statuses.items()))
        print(
            f"console: {count} requests, METAQ_FUZZ_SEED={SEED}; {shown}; {anonymous_bytes(process.pid) / MIB:.0f} MiB"
        )
        assert statuses[200] > count / 20, "some requests must be sound"
        assert {400, 401, 403, 404} <= statuses.keys()


def prepare(client: Client) -> str:
    """Bring about what could be changed: messages, a group, a branch in doubt, whose key is returned."""
    producer = client.producer()
    for number in range(60):
        producer.send("orders", b'{"number": %d}' % number, "key", partition="0-0")
    branch = client.producer(qualifier="uq")
    branch.tpc_begin(Xid.of("order", "mq"), topics=("orders",))
    branch.send("orders", b"in doubt", partition="0-0")
    branch.tpc_prepare()
    client.session.ensure(OFFSETS)
    client.session.write(OFFSETS, b"0-0")
    return f"{Xid.of('order', 'mq')}:uq"


def converse(keys: Keys, seed: int) -> tuple[int, bytes, socket.socket, int | None]:
    """Say what *seed* makes, at any pace. Returns the status, 0: ended without; None: it waits for more."""
    random = Random(seed)
    data = request(random, keys)
    peer = socket.create_connection(("127.0.0.1", keys.port), PATIENCE_S)
    with contextlib.suppress(ConnectionError):
        for piece in cuts(data, random)[:200] if random.random() < 0.3 else [data]:
            peer.sendall(piece)
    is_asked = data.startswith((b"GET", b"HEAD", b"POST")) and (b"\r\n\r\n" in data)
    # A sound head has an answer; whether its body is all there only the console knows.
    wait_s = PATIENCE_S if is_asked and data.endswith(b"\r\n\r\n") and b"ontent-" not in data else QUIET_S
    with seeded("console", seed, data):
        return seed, data, peer, status_of(keys, data, peer, wait_s)


def end(keys: Keys, seed: int, data: bytes, peer: socket.socket) -> None:
    """The answer of a request that waits for more: it must come, or the end must, in the console's own time."""
    with seeded("console", seed, data), peer:
        status = status_of(keys, data, peer, REQUEST_S_MAX + PATIENCE_S)
        assert status is not None, "neither an answer nor an end"


def status_of(keys: Keys, data: bytes, peer: socket.socket, wait_s: float) -> int | None:
    """Status of the answer to *data*, which is checked; 0: ended without one; None: nothing within *wait_s*."""
    answer, deadline = b"", time.monotonic() + wait_s
    with contextlib.suppress(ConnectionError):
        while select.select([peer], [], [], max(0.0, deadline - time.monotonic()))[0] and (chunk := peer.recv(65536)):
            answer = (answer + chunk).removeprefix(CONTINUE)
            if b"text/event-stream" in answer and b"event: page" in answer:
                break
        else:
            if not answer and time.monotonic() >= deadline:
                return None
    if not answer:
        return 0
    found = [int(status) for status in STATUS.findall(answer.partition(b"\r\n\r\n")[0])]
    assert len(found) == 1, answer[:300]
    status = found[0]
    if status == 503:
        assert b"pages are live already" in answer, answer[:300]
    elif not 400 <= status < 500:
        assert status in (200, 206, 303, 304, 307), answer[:500]
        assert keys.token.encode() in data, (status, answer[:300])
        assert not (data.startswith(b"POST") and status == 200), answer[:300]
    return status
