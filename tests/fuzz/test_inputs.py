"""Millions of inputs on each way in, METAQ_FUZZ_INPUTS in all: nothing crashes, nothing grows, others are served.

Most go to the decoders in this process, the rest to real processes: the wire with logins and without, replication
links, admin ports, nodes in a real ZooKeeper. A failure prints METAQ_FUZZ_SEED.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from meta_broker.replication.link_protocol import FlushAck, Handshake, Heartbeat, LinkDecoder
from meta_client import Client
from meta_client.batches.decision import decode_decision
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Quit, Replicate, Version
from tests.fixtures.access import AccessFile, logged_in
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.peers import MIB, anonymous_bytes, wait_until_alone
from tests.fixtures.scrape import admin_url, health
from tests.fixtures.wire import WireClient
from tests.fuzz.inputs import HANDSHAKE, HTTP, INPUTS, NODES, SEED, damaged, frame, is_left, wanted
from tests.fuzz.streams import REQUESTS, RESPONSES, stream
from tests.meta_broker.net.test_flood import OTHERS_S, cpu_s
from tests.meta_broker.net.test_fuzz import stream as sensible_stream
from zk.brokers.journal_position import decode_position
from zk.brokers.replication import decode_replication
from zk.decisions.generation import decode_generation
from zk.embedded.chroot import Chroot
from zk.errors import MalformedNode, ZooKeeperError
from zk.tree.claims import decode_epoch
from zk.tree.nodes import BrokerName, decode_broker_url, decode_offset_node, decode_topic_node, decode_topics

# Shares of INPUTS.
CODEC, LINK_CODEC, NODE_CODEC, WIRE, LINK, ADMIN, NODE = 0.315, 0.2, 0.123, 0.015, 0.005, 0.001, 0.005
TOGETHER = 16  # connections at a time
GROWTH_BYTES_MAX = 48 * MIB  # of a broker's own memory, whatever came
MARK = 2_000_000_011
ALL = 'produce = ["*"]\nconsume = ["*"]\nadmin = ["*"]\ndecide = ["*"]\nreplicate = true'
RIGHTS = {"honest": 'produce = ["*"]\nconsume = ["*"]', "hostile": ALL, "slave": "replicate = true"}
PATIENCE_S = 60.0

pytestmark = pytest.mark.timeout(600 + INPUTS / 1000)


@contextlib.contextmanager
def seeded(what: str, seed: int, data: object = b"") -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"METAQ_FUZZ_SEED={SEED}, {what} at {seed}: {data!r}"[:3000])
        raise


def decoded(data: bytes, decoder: RequestDecoder | ResponseDecoder) -> tuple[int, bool]:
    """Number of inputs that are decoded or refused, and whether the connection goes on."""
    try:
        commands = decoder.receive_data(data)
    except RemoteProtocolError:
        commands, goes_on = decoder.completed_before_failure, False
    else:
        goes_on = decoder.is_between_commands
    for number, command in enumerate(commands, 1):
        if isinstance(command, Quit):
            return number, False
    return len(commands) + (not goes_on), goes_on


@pytest.mark.parametrize(("decoder", "vectors"), [(RequestDecoder, REQUESTS), (ResponseDecoder, RESPONSES)])
def test_decoders(decoder: type[RequestDecoder] | type[ResponseDecoder], vectors: list[bytes]) -> None:
    count, seed = 0, SEED
    while is_left(decoder.__name__, count, CODEC):
        data = stream(Random(seed), vectors)
        with seeded(decoder.__name__, seed, data):
            count += max(1, decoded(data, decoder())[0])
        seed += 1
    print(f"{decoder.__name__}: {count} inputs, METAQ_FUZZ_SEED={SEED}")


def test_frames_of_links() -> None:
    count = refused = 0
    seed = SEED
    while is_left("frames", count, LINK_CODEC):
        random = Random(seed)
        decoder, data = LinkDecoder(Handshake, FlushAck, Heartbeat), frame(random)
        with seeded("link", seed, data):
            try:
                decoder.receive_data(data)
            except RemoteProtocolError:
                refused += 1
            assert decoder.held_bytes <= len(data)
        count += 1
        seed += 1
    print(f"frames: {count} inputs, {refused} refused, METAQ_FUZZ_SEED={SEED}")
    assert 0.05 < refused / count < 0.99


DECODERS: list[Callable[[str, bytes], object]] = [
    decode_offset_node,
    decode_broker_url,
    decode_topics,
    decode_epoch,
    decode_decision,
    decode_generation,
    decode_position,
    decode_replication,
    lambda path, data: decode_topic_node(path, data, BrokerName(0)),
]


def test_data_of_nodes() -> None:
    count = refused = 0
    seed = SEED
    while is_left("data of nodes", count, NODE_CODEC):
        random = Random(seed)
        data = damaged(random, NODES)
        for decode in random.sample(DECODERS, 4):
            with seeded("node", seed, data):
                try:
                    decode("/meta/x", data)
                except MalformedNode:
                    refused += 1
                count += 1
        seed += 1
    print(f"data of nodes: {count} inputs, {refused} refused, METAQ_FUZZ_SEED={SEED}")
    assert 0.1 < refused / count < 0.999


class Honest:
    """A client that asks all the time, and knows what each answer took of the broker's processor time."""

    def __init__(self, broker: BrokerProcess, client: WireClient) -> None:
        self._broker, self._client = broker, client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.served: list[float] = []
        self.error: BaseException | None = None

    def __enter__(self) -> "Honest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.01) or len(self.served) < 20:
                before = cpu_s(self._broker.pid)
                self._client.put("invoices", 0, b"honest")
                assert self._client.result(Version(1)).is_success
                self.served.append(cpu_s(self._broker.pid) - before)
        except BaseException as error:
            self.error = error

    def check(self) -> str:
        if self.error is not None:
            raise self.error
        self.served.sort()
        late = self.served[-1 - len(self.served) // 50]
        assert late < OTHERS_S, (late, self.served[-20:])
        return f"others: median {self.served[len(self.served) // 2] * 1e3:.1f} ms, 98 % {late * 1e3:.1f} ms, " + (
            f"longest {self.served[-1] * 1e3:.1f} ms of processor time, {len(self.served)} answers"
        )


@pytest.fixture(params=["open", "with logins"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-that-nobody-says\n")
    text = CONFIG + "[topics.meta-test-2]\npartitions = 4\n"
    if request.param == "open":
        text += "\n[admin]\nport = 0\n"
    else:
        text += (
            AccessFile(tmp_path / "access.toml", **RIGHTS).section() + f'[admin]\nport = 0\ntoken_file = "{token}"\n'
        )
    with running_broker(tmp_path / "broker", None, config=text) as it:
        yield it


def connected(broker: BrokerProcess, user: str) -> WireClient:
    return logged_in(broker.port, user) if "[access]" in broker.config_path.read_text() else WireClient(broker.port)


@contextlib.contextmanager
def watched(broker: BrokerProcess, what: Callable[[], str]) -> Iterator[None]:
    """Check at the end that others were served, nothing grew, and nothing stumbled."""
    honest = Honest(broker, connected(broker, "honest"))
    with honest:
        yield
    told = honest.check()
    with connected(broker, "hostile") as client:
        wait_until_alone(client)
    print(f"{what()}, METAQ_FUZZ_SEED={SEED}; {told}; {anonymous_bytes(broker.pid) / MIB:.0f} MiB")
    assert broker.stop() == 0
    assert "Traceback" not in broker.log, broker.log[-3000:]


class Growth:
    """Memory of a process, from the time on when caches and tables are warm."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: int | None = None

    def check(self, done: float) -> None:
        """*done*: part of the inputs that it has had."""
        now = anonymous_bytes(self._pid)
        if self._before is None and done > 0.2:
            self._before = now
        if self._before is not None:
            assert now - self._before < GROWTH_BYTES_MAX, (self._before, now)


def test_requests_on_the_wire(broker: BrokerProcess) -> None:
    count, seed, growth = 0, SEED, Growth(broker.pid)
    has_logins = "[access]" in broker.config_path.read_text()
    what = f"wire {'with logins' if has_logins else 'open'}"
    with watched(broker, lambda: f"{what}: {count} inputs"), ThreadPoolExecutor(TOGETHER) as together:
        while is_left(what, count, WIRE):
            seeds = range(seed, seed + 4 * TOGETHER)
            count += sum(together.map(lambda each: _converse(broker, has_logins, each), seeds))
            seed = seeds.stop
            growth.check(count / wanted(WIRE))


def _converse(broker: BrokerProcess, has_logins: bool, seed: int) -> int:
    """Say what *seed* makes, as a principal or as a stranger. Returns the number of inputs."""
    random = Random(seed)
    is_known = has_logins and random.random() < 0.7
    with seeded("wire", seed), connected(broker, "hostile") if is_known else WireClient(broker.port) as peer:
        return _say(peer.socket, random)


def _say(peer: socket.socket, random: Random) -> int:
    """Say some streams on a connection until one ends it; read until all that was said is answered. Returns the number
    of inputs."""
    decoder, count, goes_on = RequestDecoder(), 0, True
    said: list[bytes] = []
    while goes_on and len(said) < 10:
        data = stream(random, REQUESTS) if random.random() < 0.5 else sensible_stream(random)
        more, goes_on = decoded(data, decoder)
        count += more
        said.append(data)
    peer.settimeout(PATIENCE_S)
    mark = encode_request(Version(MARK))[0]
    ending = f" {MARK}\r\n".encode()
    listening = threading.Thread(target=_read_until, args=(peer, ending))
    listening.start()
    with contextlib.suppress(ConnectionError):
        peer.sendall(b"".join(said) + (mark if goes_on else b""))
        if not goes_on:
            peer.shutdown(socket.SHUT_WR)
    listening.join(PATIENCE_S)
    assert not listening.is_alive(), "neither an answer nor an end"
    return count


def _read_until(peer: socket.socket, ending: bytes) -> None:
    tail = b""
    with contextlib.suppress(OSError):
        while chunk := peer.recv(1 << 18):
            tail = (tail + chunk)[-4096:]
            if ending in tail:
                return


def test_frames_on_links(broker: BrokerProcess) -> None:
    count, seed, growth = 0, SEED, Growth(broker.pid)
    with watched(broker, lambda: f"links: {count} inputs"):
        while is_left("links", count, LINK):
            random = Random(seed)
            frames = [HANDSHAKE] * (random.random() < 0.7) + [frame(random) for _ in range(20)]
            decoder, said = LinkDecoder(Handshake, FlushAck), b""
            with seeded("link", seed, frames), connected(broker, "slave") as slave:
                for each in frames:
                    said += each
                    count += 1
                    try:
                        decoder.receive_data(each)
                    except RemoteProtocolError:
                        break
                if (answer := slave.result(Replicate(1))).is_success:
                    with contextlib.suppress(ConnectionError):
                        slave.socket.sendall(said)
                        slave.socket.shutdown(socket.SHUT_WR)
                    slave.socket.settimeout(PATIENCE_S)
                    _read_until(slave.socket, b"\0no such thing\0")
                else:
                    assert answer.status == 503, answer  # links of before are not over yet
            seed += 1
            if seed % 50 == 0:
                growth.check(count / wanted(LINK))


def test_requests_of_admin_ports(broker: BrokerProcess) -> None:
    count, seed, growth, url = 0, SEED, Growth(broker.pid), admin_url(broker)
    port = int(url.rpartition(":")[2])
    with watched(broker, lambda: f"admin port: {count} inputs"):
        while is_left("admin port", count, ADMIN):
            data = damaged(Random(seed), HTTP, 4)
            with seeded("admin", seed, data), socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer:
                with contextlib.suppress(ConnectionError):
                    peer.sendall(data)
                    peer.shutdown(socket.SHUT_WR)
                _read_until(peer, b"\0no such thing\0")
            count += 1
            seed += 1
            if seed % 50 == 0:
                growth.check(count / wanted(ADMIN))
                assert health(url, "live")[0] == 200


def test_nodes_in_zookeeper(tmp_path: Path, zookeeper: Chroot) -> None:
    """Beside a broker, a producer and commands, which go on."""
    paths = [
        "/meta/brokers/ids/7/master",
        "/meta/brokers/ids/7/slave1",
        "/meta/brokers/topics-pub/orders/7-m",
        "/meta/brokers/topics-sub/orders/7-m",
        "/meta/consumers/group/ids/group_x",
        "/meta/consumers/group/offsets/orders/0-1",
        "/meta/consumers/group/owners/orders/0-1",
        "/meta/metaq/epochs/group/orders/0-1",
        "/meta/metaq/brokers/7/journal",
        "/meta/metaq/brokers/7/replication",
        "/meta/metaq/spark/query/decision",
    ]
    count, seed = 0, SEED
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG) as broker,
        Client(zookeeper.connect) as client,
    ):
        producer, growth = client.producer(), Growth(broker.pid)
        while is_left("nodes in ZooKeeper", count, NODE):
            random = Random(seed)
            path, data = random.choice(paths), damaged(random, NODES)
            with seeded("ZooKeeper", seed, (path, data)):
                try:
                    client.session.write(path, data)
                except ZooKeeperError as error:
                    raise AssertionError(f"{path} can't be written") from error
                count += 1
                seed += 1
                if count % 20 == 0:
                    producer.send("orders", b"still")
                if count % 200 == 0:
                    growth.check(count / wanted(NODE))
        for words in (("groups",), ("brokers",), ("topics",), ("doctor", "zookeeper")):
            done = run_metaq(*words, "--zk", zookeeper.connect)
            assert "Traceback" not in done.stderr, (words, done.stderr, f"METAQ_FUZZ_SEED={SEED}")
        with Client(zookeeper.connect) as fresh:
            fresh.producer().send("orders", b"still")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log
    print(f"nodes in ZooKeeper: {count} inputs, METAQ_FUZZ_SEED={SEED}")
