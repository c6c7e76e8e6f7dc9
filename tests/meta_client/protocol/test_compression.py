"""Compressed payloads: there and back, and everything that is none."""

import struct
import sys
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from lz4 import block

from meta_client.protocol.compression import (
    LENGTH,
    Codec,
    codec_number,
    codec_of,
    compress,
    declared_bytes,
    decompress,
)
from meta_client.protocol.errors import CodecMissing, InvalidMessage
from meta_client.protocol.messages import (
    DATA_BYTES_MAX,
    check_compressed,
    decode_body,
    encode_body,
    encode_frame,
    iter_frames,
)

GIB = 1024 * 1024 * 1024
BYTES_MAX = 10_000
each_codec = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.label)
texts = st.binary(max_size=300) | st.builds(lambda part, n: part * n, st.binary(max_size=20), st.integers(0, 100))


@each_codec
@given(payload=texts, attribute=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=10))
def test_there_and_back(codec: Codec, payload: bytes, attribute: str | None) -> None:
    assert decompress(codec, compress(codec, payload), len(payload)) == payload
    flag, body = encode_body(payload, attribute, codec)
    assert decode_body(flag, body) == (attribute, payload)
    assert codec_number(flag) in (0, codec)
    assert len(body) <= len(encode_body(payload, attribute)[1])  # never for the worse
    if codec_number(flag):
        assert check_compressed(flag, body, len(payload) + len(body)) == codec


@each_codec
def test_only_from_a_size_on_and_only_if_it_helps(codec: Codec) -> None:
    assert encode_body(b"x" * 99, None, codec, 100) == (0, b"x" * 99)
    assert encode_body(b"x" * 100, None, codec, 100)[0] == codec.flag
    assert encode_body(bytes(range(100)), None, codec, 100) == (0, bytes(range(100)))


def test_a_stream_that_gives_less_than_it_declares_is_refused() -> None:
    data = LENGTH.pack(10) + block.compress(b"short", store_size=False)
    with pytest.raises(ValueError, match="lz4 gives 5 bytes, 10 are declared"):
        decompress(Codec.LZ4, data, BYTES_MAX)


@each_codec
@given(payload=texts.filter(len), data=st.data())
def test_a_damaged_stream_is_refused_or_harmless(codec: Codec, payload: bytes, data: st.DataObject) -> None:
    """Decoding raises no exception except ValueError, and never returns another length than declared."""
    stream = bytearray(compress(codec, payload))
    match data.draw(st.sampled_from(["flip", "cut", "more"])):
        case "flip":
            stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del stream[data.draw(st.integers(0, len(stream) - 1)) :]
            with pytest.raises(ValueError):
                decompress(codec, bytes(stream), BYTES_MAX)
            return
        case "more":
            stream += data.draw(st.binary(min_size=1, max_size=8))
    try:
        found = decompress(codec, bytes(stream), BYTES_MAX)
    except ValueError:
        return
    assert len(found) == LENGTH.unpack_from(stream)[0] <= BYTES_MAX


@each_codec
@given(junk=st.binary(max_size=100))
def test_any_bytes(codec: Codec, junk: bytes) -> None:
    try:
        assert len(decompress(codec, junk, BYTES_MAX)) <= BYTES_MAX
    except ValueError:
        return


def bombs() -> list[tuple[str, int, bytes]]:
    """A GiB of zeros in a few KiB, in every disguise: what it says of itself, and what is in it."""
    zeros = zstandard.ZstdCompressor().compress(bytes(GIB))
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * 1024 * 1024))
    lz4_bomb = block.compress(bytes(64 * 1024 * 1024), store_size=False)
    return [
        ("declared", Codec.ZSTD, LENGTH.pack(GIB) + zeros),
        ("in the frame", Codec.ZSTD, LENGTH.pack(100) + zeros),
        ("nowhere", Codec.ZSTD, LENGTH.pack(100) + nameless),
        ("negative", Codec.ZSTD, LENGTH.pack(-1) + zeros),
        ("lz4", Codec.LZ4, LENGTH.pack(100) + lz4_bomb),
        ("lz4 declared", Codec.LZ4, LENGTH.pack(64 * 1024 * 1024) + lz4_bomb),
    ]


def test_a_bomb_costs_no_more_than_a_message() -> None:
    for name, number, data in bombs():
        tracemalloc.start()
        try:
            with pytest.raises(ValueError):
                decompress(number, data, DATA_BYTES_MAX)
            assert tracemalloc.get_traced_memory()[1] < 2 * DATA_BYTES_MAX, name
        finally:
            tracemalloc.stop()
        frame = encode_frame(1, Codec(number).flag, data)
        with pytest.raises(InvalidMessage):
            list(iter_frames(frame))


def test_what_is_declared_is_checked_with_the_attribute() -> None:
    flag, body = encode_body(b"x" * 1000, "attr", Codec.LZ4)
    assert check_compressed(flag, body, 1008) == Codec.LZ4
    assert decode_body(flag, body, 1008) == ("attr", b"x" * 1000)
    for check in (check_compressed, decode_body):
        with pytest.raises(ValueError, match=r"1000 bytes once decompressed are outside \[0, 999\]"):
            check(flag, body, 1007)


@pytest.mark.parametrize(
    ("number", "data", "why"),
    [
        (3, LENGTH.pack(1) + b"x", "codec 3 is not known"),
        (255, LENGTH.pack(1) + b"x", "codec 255 is not known"),
        (1, b"\0\0\0", "no room for their length"),
        (1, LENGTH.pack(2**31 - 1), "once decompressed are outside"),
    ],
)
def test_what_a_broker_sees_without_any_library(number: int, data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        declared_bytes(number, data, BYTES_MAX)


def test_flags_of_others_mean_nothing() -> None:
    for flag in (0, 2, 0x100, 0x4D51 << 15, 0x4D50_0100, 0x4D51_0000, -1, -(2**31)):
        assert codec_number(flag) == 0
    assert [codec_number(codec.flag | 1) for codec in Codec] == [1, 2]
    with pytest.raises(ValueError, match="'gzip' is no codec: use lz4 or zstd"):
        codec_of("gzip")


@each_codec
def test_a_missing_library_is_named_never_garbage(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, body = encode_body(b"hello" * 20, None, codec)
    stream = encode_frame(1, 0, b"before") + encode_frame(2, flag, body)
    for name in ("zstandard", "lz4", "lz4.block"):
        monkeypatch.setitem(sys.modules, name, None)
    found: list[bytes] = []
    errors: list[CodecMissing] = []

    def read() -> None:  # a thread of its own has made no engine yet
        try:
            for _, _, message in iter_frames(stream, 100):
                found.append(message.payload)
        except CodecMissing as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [b"before"]
    (error,) = errors
    assert str(error).startswith(f"the message at offset 126 is compressed with {codec.label}, and the package ")
    assert str(error).endswith("is not installed: pip install 'metaq-broker[compression]'")
    assert (error.offset, error.next_offset) == (126, 100 + len(stream))


def test_many_threads_at_once() -> None:
    wrong: list[int] = []

    def run(seed: int) -> None:
        payload = struct.pack(">I", seed) * 500
        found = [decompress(codec, compress(codec, payload), len(payload)) for codec in list(Codec) * 200]
        wrong.append(sum(one != payload for one in found))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 4
