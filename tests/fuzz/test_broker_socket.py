"""A broker process that strangers talk nonsense to: it closes them as the protocol says, and serves everybody else."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from meta_client.protocol.responses import Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from tests.fuzz.streams import REQUESTS, cuts, stream

SECONDS = float(os.environ.get("METAQ_FUZZ_SECONDS", "0"))
FIRST_SEED = int(os.environ.get("METAQ_FUZZ_SEED", "0"))
SEEDS = 300
TOGETHER = 20  # connections at a time
ANSWER_S = 60.0  # for a broker that takes no more: a machine may stall for seconds


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Broker with the topic of the vectors, so that many near-requests are valid requests."""
    broker = BrokerProcess(tmp_path / "data", None, config="[topics.meta-test]\npartitions = 4\n")
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.mark.timeout(SECONDS + 180)
def test_strangers_disturb_nobody(broker: BrokerProcess) -> None:
    body, end, seed = b"honest", time.monotonic() + SECONDS, FIRST_SEED
    with WireClient(broker.port) as honest:
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


def _say(port: int, random: Random) -> socket.socket:
    """A connection on which one stream was sent; its answers are not read, and it may be closed by now."""
    stranger = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
    try:
        for piece in cuts(stream(random, REQUESTS), random):
            stranger.sendall(piece)
    except ConnectionError:
        pass  # it heard enough
    return stranger
