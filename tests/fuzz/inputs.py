"""Counts of inputs, and inputs of replication links, ZooKeeper nodes and admin ports: nearly right, one a seed. Pure.

An input is a request, a response, a frame of a link, the data of a node, or a request of HTTP. Counted are those that
were decoded or refused: behind a refusal nothing more of a connection is read.
"""

import os
import struct
import time
from random import Random

from journal.checksum import crc32
from journal.records.header import Lsn
from meta_broker.replication.link_protocol import FlushAck, Handshake, Heartbeat, encode
from tests.fuzz.streams import damage

INPUTS = int(os.environ.get("METAQ_FUZZ_INPUTS", "200000"))
SEED = int(os.environ.get("METAQ_FUZZ_SEED", "0")) or Random().randrange(1, 2**32)

PROGRESS_S = 10.0
_told_at = time.monotonic()

HANDSHAKE = encode(Handshake(version=1, cluster="metaq", broker_id=0, slave_id=9, epoch_history=(), start=0, end=0))
FRAMES = [
    HANDSHAKE,
    encode(Handshake(version=1, cluster="metaq", broker_id=0, slave_id=1, epoch_history=((1, 2, 3),), start=5, end=9)),
    encode(FlushAck(Lsn(0))),
    encode(FlushAck(Lsn(2**40))),
    encode(Heartbeat(Lsn(4), Lsn(8), 15, True, "sync")),
]
NODES = [
    b'{"numParts":4,"broker":"0-m"}',
    b"meta://127.0.0.1:8123",
    b"meta://[::1]:8123?isSlave=true",
    b"123456789012-4096",
    b"-1-0",
    b"17",
    b"orders,invoices,meta-test",
    b'{"epoch":3,"lives":[[1,2,3]],"in_sync":[1,2]}',
    b'{"end":4096,"epoch":1,"incarnation":"ab","written_ms":5}',
    b'{"generation":4,"raised_ms":1}',
    b'{"batch":7,"branches":[["XID:1:61:62:uq",0]]}',
]
HTTP = [
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9440\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    b"GET /metrics?name[]=metaq_broker_ready HTTP/1.0\r\nAuthorization: Bearer wrong\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1:9440\r\nConnection: keep-alive\r\n\r\n",
    b"GET /health/ready HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nhello",
    b"GET //../..%2f%00 HTTP/1.1\r\nX: " + b"y" * 500 + b"\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def wanted(share: float) -> int:
    """Return how many inputs make *share* of all."""
    return max(20, round(INPUTS * share))


def is_left(what: str, count: int, share: float) -> bool:
    """Return whether *count* inputs are less than *share* of all; every PROGRESS_S seconds, print how far that is."""
    global _told_at
    if (now := time.monotonic()) - _told_at >= PROGRESS_S:
        _told_at = now
        print(f"  {what}: {count} of {wanted(share)} inputs, METAQ_FUZZ_SEED={SEED}", flush=True)
    return count < wanted(share)


def damaged(random: Random, inputs: list[bytes], most: int = 3) -> bytes:
    """One of *inputs*, damaged up to *most* times."""
    data = bytearray(random.choice(inputs))
    for _ in range(random.randint(0, most)):
        damage(data, random)
    return bytes(data)


def frame(random: Random) -> bytes:
    """A frame of a link, damaged; mostly with the checksum and the length that it should have, to be looked into."""
    data = damaged(random, FRAMES)
    if len(data) >= 12 and random.random() < 0.8:
        fixed = bytearray(data)
        if random.random() < 0.9:
            fixed[8:12] = struct.pack("<I", len(fixed) - 12)
        fixed[:4] = struct.pack("<I", crc32(fixed[4:]))
        data = bytes(fixed)
    return data
