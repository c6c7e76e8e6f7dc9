"""Buffers of large bodies: the same commands as without them, and none is used again while somebody has a view."""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from meta_client.protocol.body_buffers import REUSED_BYTES_MAX, REUSED_BYTES_MIN, BodyBuffers
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Dropped, Put, Request, Version
from meta_client.protocol.responses import Value
from meta_client.protocol.status import Status

KEPT = 1 << 20
SIZES = 1, REUSED_BYTES_MIN - 1, REUSED_BYTES_MIN, 70_000, REUSED_BYTES_MAX, REUSED_BYTES_MAX + 1


def put(size: int, opaque: int, noise: random.Random) -> Put:
    return Put("t", 0, 0, None, None, opaque, noise.randbytes(size))


@pytest.mark.parametrize("seed", range(20))
def test_the_same_commands_however_the_bytes_arrive(seed: int) -> None:
    chance = random.Random(seed)
    sent = [
        put(chance.choice(SIZES), number, chance) if chance.random() < 0.7 else Version(number) for number in range(12)
    ]
    stream = memoryview(b"".join(b"".join(encode_request(request)) for request in sent))
    decoder, decoded = RequestDecoder(buffers=BodyBuffers(KEPT)), list[Request | Dropped]()
    while stream:
        count = min(len(stream), chance.choice([1, 100, 40_000, 300_000]))
        if (room := decoder.body_room) is not None and chance.random() < 0.7:
            count = min(count, len(room))
            room[:count] = stream[:count]
            decoded += decoder.body_received(count)
        else:
            decoded += decoder.receive_data(bytes(stream[:count]))
        stream = stream[count:]
    assert decoded == sent  # all of them are held: none took the buffer of another
    assert decoder.is_between_commands
    assert decoder.body_bytes_held == decoder.buffered_bytes == 0
    views = [request for request in decoded if isinstance(request, Put) and isinstance(request.body, memoryview)]
    assert all(REUSED_BYTES_MIN <= len(request.body) <= REUSED_BYTES_MAX for request in views)


def answer(decoder: ResponseDecoder, body: bytes) -> memoryview:
    """Return the body of an answer that arrives in two parts."""
    wire = b"value %d 1\r\n%b" % (len(body), body)
    assert decoder.receive_data(wire[:-5]) == []
    (value,) = decoder.receive_data(wire[-5:])
    assert isinstance(value, Value)
    assert isinstance(value.body, memoryview)
    return value.body


@pytest.mark.parametrize(
    "hold",
    [
        lambda body: body,
        lambda body: body[5:50],
        lambda body: body[7::20],
        lambda body: np.frombuffer(body, dtype=np.uint8)[10:20:3],
        lambda body: pa.py_buffer(body).slice(100, 10),
    ],
)
def test_a_buffer_is_used_again_only_once_nobody_has_a_view(hold: Callable[[memoryview], object]) -> None:
    decoder = ResponseDecoder(buffers=BodyBuffers(KEPT))
    held = hold(answer(decoder, b"a" * 50_000))
    before = bytes(memoryview(held))  # type: ignore[arg-type]
    second = answer(decoder, b"b" * 50_000)
    assert bytes(memoryview(held)) == before  # type: ignore[arg-type]
    first_place = np.frombuffer(second, dtype=np.uint8).ctypes.data
    del second
    third = answer(decoder, b"c" * 50_000)
    assert np.frombuffer(third, dtype=np.uint8).ctypes.data == first_place
    assert bytes(memoryview(held)) == before  # type: ignore[arg-type]
    del held, third
    taken = {np.frombuffer(answer(decoder, b"d" * 50_000), dtype=np.uint8).ctypes.data for _ in range(10)}
    assert len(taken) <= 2


def test_what_is_kept_is_bounded() -> None:
    buffers = BodyBuffers(200_000)
    views = [buffers.allocate(REUSED_BYTES_MIN) for _ in range(50)]
    assert len({np.frombuffer(view, dtype=np.uint8).ctypes.data for view in views}) == 50
    del views
    assert sum(map(len, buffers._kept)) <= 200_000


def test_a_body_that_is_given_up_leaves_its_buffer() -> None:
    decoder = RequestDecoder(buffers=BodyBuffers(KEPT))
    body = b"x" * 60_000
    assert decoder.receive_data(b"put t 0 60000 0 2\r\n" + body[:100]) == []
    assert (decoder.body_bytes_held, decoder.buffered_bytes) == (60_000, 100)  # memory, and bytes that have arrived
    room = decoder.body_room
    assert room is not None
    room[:50] = body[:50]
    assert decoder.body_received(50) == []
    assert decoder.drop_body("too busy") == Dropped(2, Status.UNAVAILABLE, "too busy")
    assert decoder.body_room is None
    assert (decoder.body_bytes_held, decoder.is_between_commands) == (0, False)
    assert decoder.receive_data(body[150:] + b"version 5\r\n") == [Version(5)]
