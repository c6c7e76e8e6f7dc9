"""A broker process that strangers talk nonsense to: it closes them as the protocol says, and serves everybody else."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from journal.records.header import Lsn
from meta_broker.replication.link_protocol import FlushAck, Handshake, encode
from meta_client.protocol.requests import Replicate
from meta_client.protocol.responses import Value
from tests.fixtures.access import AccessFile, logged_in
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from tests.fuzz.streams import REQUESTS, cuts, stream

SECONDS = float(os.environ.get("METAQ_FUZZ_SECONDS", "0"))
FIRST_SEED = int(os.environ.get("METAQ_FUZZ_SEED", "0"))
SEEDS = 300
TOGETHER = 20  # connections at a time
ANSWER_S = 60.0  # for a broker that takes no more: a machine may stall for seconds


CONFIG = "[topics.meta-test]\npartitions = 4\n"
RIGHTS = {"honest": 'produce = ["*"]\nconsume = ["*"]', "slave": "replicate = true"}


@pytest.fixture(params=["open", "with logins"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """Broker with the topic of the vectors, so that many near-requests are valid requests."""
    access = AccessFile(tmp_path / "access.toml", **RIGHTS).section() if request.param == "with logins" else ""
    broker = BrokerProcess(tmp_path / "data", None, config=CONFIG + access)
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.mark.timeout(SECONDS + 180)
def test_strangers_disturb_nobody(broker: BrokerProcess) -> None:
    body, end, seed = b"honest", time.monotonic() + SECONDS, FIRST_SEED
    with connected(broker) as honest:
        while time.monotonic() < end or (not SECONDS and seed < FIRST_SEED + SEEDS):
            strangers = [_say(broker.port, Random(number)) for number in range(seed, seed + TOGETHER)]
            try:
                place = honest.put("meta-test", 3, body)
                assert place.offset is not None
                value = honest.get("meta-test", 3, place.offset)
                assert isinstance(value, Value)
                assert body in value.body
            except Exception as error:
                error.add_note(f"METAQ_FUZZ_SEED={seed}; the broker's log ends: {broker.log[-2000:]}")
                raise
            for stranger in strangers:
                stranger.close()
            seed += TOGETHER
    print(f"broker: {seed - FIRST_SEED} streams from seed {FIRST_SEED} on")
    assert broker.stop() == 0
    broker.audit()
    assert "Traceback" not in broker.log


@pytest.mark.timeout(SECONDS + 180)
def test_slaves_that_talk_nonsense_disturb_nobody(broker: BrokerProcess) -> None:
    """On links, after a login where there is one: frames that are nearly right."""
    hello = encode(Handshake(version=1, cluster="metaq", broker_id=0, slave_id=9, epoch_history=(), start=0, end=0))
    end, seed = time.monotonic() + SECONDS, FIRST_SEED
    with connected(broker) as honest:
        while time.monotonic() < end or (not SECONDS and seed < FIRST_SEED + SEEDS // 3):
            random = Random(seed)
            with connected(broker, "slave") as slave:
                assert slave.result(Replicate(1)).is_success
                with contextlib.suppress(ConnectionError):
                    for piece in cuts(stream(random, [hello, encode(FlushAck(Lsn(0)))]), random):
                        slave.socket.sendall(piece)
            assert honest.put("meta-test", 3, b"honest").offset is not None
            seed += 1
    print(f"links: {seed - FIRST_SEED} streams from seed {FIRST_SEED} on")
    assert broker.stop() == 0
    broker.audit()
    assert "Traceback" not in broker.log


def connected(broker: BrokerProcess, user: str = "honest") -> WireClient:
    """A client that may do what it does, logged in if it has to be."""
    return logged_in(broker.port, user) if "[access]" in broker.config_path.read_text() else WireClient(broker.port)


def _say(port: int, random: Random) -> socket.socket:
    """A connection on which one stream was sent; its answers are not read, and it may be closed by now."""
    stranger = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
    try:
        for piece in cuts(stream(random, REQUESTS), random):
            stranger.sendall(piece)
    except ConnectionError:
        pass  # it heard enough
    return stranger
