"""A real broker under requests that nobody would send: it answers or closes, goes on serving, and never stumbles.

METAQ_FUZZ_SECONDS says for how long; a failure prints its seed, which METAQ_FUZZ_SEED takes.
"""

import contextlib
import os
import socket
import time
import zlib
from random import Random

import pytest

from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.peers import MIB, anonymous_bytes, wait_until_alone
from tests.fixtures.wire import WireClient

SECONDS = float(os.environ.get("METAQ_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("METAQ_FUZZ_SEED", "0")) or Random().randrange(1, 2**32)

TOPICS = ["orders", "meta-test", "dynamic-1", "nope", "", "消息", "a*b", "x" * 300, "../../etc", "o\rp\nq", "\x00"]
NUMBERS = [0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**19, 4096, 1048576]
VERBS = ["BEGIN", "PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK", "RECOVER", "FORGET", "END", "STATUS"]
KEYS = ["null", "TX:s:1", "TX:s:2", "XID:1:61:62:uq", "XID:1:::uq", "XID:-1:6:62:uq", "XID:1:61:62:other", "TX:::", "X"]
WORDS = [
    b"put",
    b"get",
    b"fetch",
    b"offset",
    b"stats",
    b"topic",
    b"mput",
    b"sync",
    b"value",
    b"\xff",
    b"\r",
    b"\n",
    b" ",
]


def number(random: Random) -> int:
    return random.choice(NUMBERS) if random.random() < 0.3 else random.randrange(-2, 60)


def request(random: Random) -> bytes:
    """One request: mostly well-formed, with contents that mostly make no sense."""
    topic, partition, opaque = random.choice(TOPICS), number(random), random.choice([1, -5, 2**31 - 1])
    key, body = random.choice(KEYS), random.randbytes(random.choice([0, 1, 30, 500]))
    checksum = random.choice([-1, zlib.crc32(body) & 0x7FFFFFFF, number(random)])
    flag = random.choice([0, 1, 0x4D510100, 0x4D510201, number(random)])
    match random.randrange(10):
        case 0:
            with_key = f"{key} " if random.random() < 0.5 else ""
            return f"put {topic} {partition} {len(body)} {flag} {checksum} {with_key}{opaque}\r\n".encode() + body
        case 1:
            frame = len(body).to_bytes(4, "big") + (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big") + bytes(8)
            frame += flag.to_bytes(4, "big", signed=True) if abs(flag) < 2**31 else bytes(4)
            frames = (frame + body) * (count := random.randrange(1, 4))
            crc = zlib.crc32(frames) & 0x7FFFFFFF if random.random() < 0.8 else checksum
            middle = random.choice(["", f"p:{number(random)} ", f"{key} ", f"p:{number(random)} {key} "])
            return f"mput {topic} {partition} {count} {len(frames)} {crc} {middle}{opaque}\r\n".encode() + frames
        case 2:
            return f"get {topic} g {partition} {number(random)} {number(random)} {opaque}\r\n".encode()
        case 3:
            wait = random.choice([0, 1, 50, -1])
            numbers = f"{number(random)} {number(random)} {number(random)} {wait}"
            return f"fetch {topic} g {partition} {numbers} {opaque}\r\n".encode()
        case 4:
            return f"offset {topic} g {partition} {number(random)} {opaque}\r\n".encode()
        case 5:
            timeout = random.choice(["", "1 ", "0 ", f"{number(random)} "])
            qualifier = random.choice(["", "uq ", "other "])
            return f"transaction {key} s {random.choice(VERBS)} {timeout}{qualifier}{opaque}\r\n".encode()
        case 6:
            item = random.choice(["", "topics", "offsets", "realtime", "reset", "help", "config", topic])
            return f"stats {item} {opaque}\r\n".encode()
        case 7:
            verb = random.choice(["create", "alter", "close", "open", "show", "delete"])
            setting = random.choice(["", "partitions=2 ", "partitions=0-9 ", "stat=maybe ", f"x={number(random)} "])
            return f"topic {verb} {topic} {setting}{opaque}\r\n".encode()
        case 8:
            wanted = random.choice(["key=", "key=61", f"id={number(random)}", "key=6", f"id={2**63 - 1}"])
            return f"find {topic} {partition} {number(random)} {number(random)} {wanted} {opaque}\r\n".encode()
        case _:
            return random.choice([b"version 1\r\n", b"v\r\n", b"sync orders 0 1 0 5 -1 1\r\nx", b"quit\r\n"])


def stream(random: Random) -> bytes:
    """Some requests in a row; now and then damaged."""
    made = b"".join(request(random) for _ in range(random.randrange(1, 40)))
    if random.random() < 0.3:
        at = random.randrange(len(made))
        made = made[:at] + random.choice([random.randbytes(3), random.choice(WORDS), b""]) + made[at + 1 :]
    return made


def tell(broker: BrokerProcess, data: bytes, random: Random) -> int:
    """Say it, in pieces, and listen for a moment; returns how many bytes were answered."""
    answered = 0
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as peer, contextlib.suppress(OSError):
        pieces = random.choice([1, 1, 3, 10])
        for start in range(0, len(data), step := max(1, len(data) // pieces)):
            peer.sendall(data[start : start + step])
        peer.settimeout(0.01)
        while chunk := peer.recv(1 << 16):
            answered += len(chunk)
    return answered


@pytest.mark.timeout(600 + 2 * SECONDS)
def test_nothing_that_is_said_makes_a_broker_stumble(tmp_path_factory: pytest.TempPathFactory) -> None:
    print(f"METAQ_FUZZ_SEED={SEED}")
    random = Random(SEED)
    directory = tmp_path_factory.mktemp("fuzz")
    with running_broker(directory / "broker", None, config=CONFIG) as broker, WireClient(broker.port) as client:
        client.put("invoices", 0, b"first")
        streams = answered = 0
        before, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end or streams <= 100:
            answered += tell(broker, stream(random), random)
            streams += 1
            if streams == 100:
                before = anonymous_bytes(broker.pid)
            assert "Traceback" not in broker.log, broker.log[-3000:]
        assert answered > 1000 * streams / 10, "hardly anything was answered"
        wait_until_alone(client)
        assert client.put("invoices", 0, b"still served").offset == 25
        assert anonymous_bytes(broker.pid) - before < 64 * MIB
        assert broker.stop() == 0
        assert "Traceback" not in broker.log
        broker.start()
