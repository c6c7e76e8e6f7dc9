"""Time until a broker with thousands of topics serves: answers a put, and has every topic registered."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.checkpoints import Pinger
from bench.environment import READY
from bench.peer import Peer
from bench.recovery import START_TIMEOUT_S, directory_for, store_in
from bench.result import Result
from journal.records.record import PartitionName
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Get, Put, TakeCheckpoint
from zk.brokers.cluster import read_brokers
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import BrokerName, decode_topic_node
from zk.tree.paths import TopicBrokerKey, TopicKind

TOPICS = 8_000
MESSAGES = 5  # of each
ROUNDS = 3
PUTS_AT_ONCE = 500
NAMES = [f"many-{number:04}" for number in range(TOPICS)]
CONFIG = '[broker]\ncheckpoint_seconds = 3600.0\n[topics."many-*"]\npartitions = 1\n'
ANSWER_EVERY_S = 0.002
MASTER = BrokerName(0)


class Served(NamedTuple):
    """Seconds from the start of a broker's process until it answers a put, and until all its topics are registered."""

    answers_s: float
    registered_s: float


class Running(NamedTuple):
    """A broker's process that serves."""

    process: "subprocess.Popen[bytes]"
    served: Served
    address: tuple[str, int]


def until_served(case: str) -> Result:
    """Seconds of the slowest start on TOPICS topics: after a clean stop, or killed after a put to each. The baseline is
    the start of a broker without topics."""
    with directory_for(0) as data, EmbeddedZooKeeper() as zookeeper, ZooKeeperSession(zookeeper.connect) as session:
        data.with_name("broker.toml").write_text(CONFIG)
        with _running(data.with_name("empty"), zookeeper.connect) as broker:
            baseline = max(broker.served)
        with store_in(data) as store:
            fill(store)
            store.last_checkpoint()
        with _running(data, zookeeper.connect) as broker:  # makes the folders of its topics
            detail = {"topics": TOPICS, "first_s": round(max(broker.served), 2)}
            port = broker.address[1]
        clean, killed, silence = list[Served](), list[Served](), list[float]()
        for _ in range(ROUNDS):
            with _running(data, zookeeper.connect, port) as broker:
                clean.append(broker.served)
                check_found(session, broker.address)
                silence.append(longest_silence(broker.address))
                put_to_each(broker.address)
                broker.process.kill()
                broker.process.wait()
            with _running(data, zookeeper.connect, port) as broker:
                killed.append(broker.served)
                check_found(session, broker.address)
    for name, starts in (("clean", clean), ("killed", killed)):
        for part, worst in zip(Served._fields, map(max, zip(*starts, strict=True)), strict=True):
            detail[f"{name}_{part}"] = round(worst, 2)
    detail["silence_ms"] = round(max(silence) * 1000, 1)
    return Result(case, max(map(max, clean + killed)), "s", baseline, detail)


def fill(store: MessageStore) -> None:
    """Put MESSAGES to each topic, one after the other."""
    frame = encode_frame(1, 0, b"x" * 100)
    for number in range(MESSAGES * TOPICS):
        name = PartitionName(NAMES[number % TOPICS], 0)
        result = store.transactions.put(name, [frame], len(frame), 1)
        store.high_watermark.run_after(result.lsn, store.publish, result.updates)
        if number % 1000 == 0:
            store.advance()
    store.journal.wait_flushed(store.journal.end)
    store.advance()


def put_to_each(address: tuple[str, int]) -> None:
    """Put a message to each topic, on the wire."""
    with contextlib.closing(Peer(address)) as peer:
        for first in range(0, TOPICS, PUTS_AT_ONCE):
            numbers = range(first, first + PUTS_AT_ONCE)
            peer.ask(*(Put(NAMES[number], 0, 0, None, None, number, b"x" * 100) for number in numbers))


def longest_silence(address: tuple[str, int]) -> float:
    """Return the longest time without a reply, in seconds, while each topic is read for the first time since the start,
    and while the first checkpoint is taken."""
    with contextlib.closing(Peer(address)) as peer, Pinger(address) as pinger:

        def read_each() -> None:
            for number, name in enumerate(NAMES):
                peer.exchange(Get(name, "bench", 0, 0, 1024, number))

        return max(pinger.worst_during(read_each), pinger.worst_during(lambda: peer.ask(TakeCheckpoint(1))))


def check_found(session: ZooKeeperSession, address: tuple[str, int]) -> None:
    """Check that producers and consumers can find the broker and all its topics."""
    master = read_brokers(session)[MASTER.broker_id].master
    assert master is not None
    assert (master.host, master.port) == address
    for kind in (TopicKind.PUB, TopicKind.SUB):
        paths = [session.paths.of(TopicBrokerKey(kind, name, MASTER)) for name in NAMES]
        nodes = session.read_many(paths)
        assert len(nodes) == TOPICS, f"{len(nodes)} topics are found"
        for path, node in nodes.items():
            assert decode_topic_node(path, node.data, MASTER).partitions == 1


@contextlib.contextmanager
def _running(data: Path, zookeeper: str, port: int = 0) -> Iterator[Running]:
    """Run a broker on *data* until the block ends; yields once it is registered. *port* 0: any free port, and no put is
    timed."""
    words = [sys.executable, "-m", "meta_client.cli.main", "broker", "--data", str(data), "--id", "0"]
    words += ["--port", str(port), "--zk", zookeeper, "--config", str(data.with_name("broker.toml"))]
    with tempfile.TemporaryFile() as out:
        began = time.monotonic()
        process = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            answers_s = _answers(process, port) - began if port else 0.0
            while not (ready := READY.search(said := Path(f"/proc/self/fd/{out.fileno()}").read_text())):
                if process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                    raise RuntimeError(f"the broker did not start:\n{said}")
                time.sleep(ANSWER_EVERY_S)
            registered_s = time.monotonic() - began
            yield Running(process, Served(answers_s, registered_s), (ready[1], int(ready[2])))
        finally:
            process.send_signal(signal.SIGTERM)  # does nothing to a killed process
            process.wait()


def _answers(process: "subprocess.Popen[bytes]", port: int) -> float:
    """Return the time when a put is answered. A broker listens once it can do that."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with contextlib.closing(Peer(("127.0.0.1", port))) as peer:
                peer.ask(Put(NAMES[0], 0, 0, None, None, 0, b"x"))
                return time.monotonic()
        except ConnectionRefusedError:
            time.sleep(ANSWER_EVERY_S)
    raise RuntimeError("the broker did not listen")
