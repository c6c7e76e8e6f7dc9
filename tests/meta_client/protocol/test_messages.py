"""Broken message frames (spec 3.6 and 8.7)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_client.protocol.errors import InvalidMessage, LocalProtocolError
from meta_client.protocol.messages import Message, decode_body, encode_body, encode_frame, frame_header, iter_frames

GOOD = encode_frame(7, 0, b"hello")


def test_sound_frames_before_a_broken_one_are_delivered() -> None:
    frames = iter_frames(GOOD + GOOD[:-1] + b"!" + GOOD, 100)
    assert next(frames) == (100, 125, Message(7, 0, None, b"hello"))
    with pytest.raises(InvalidMessage, match=r"offset 125: checksum 907060870 stored, \d+ found") as caught:
        next(frames)
    assert (caught.value.offset, caught.value.next_offset) == (125, None)


def test_unverified_frames_pass_with_flipped_bits() -> None:
    flipped = GOOD[:-1] + b"!"
    assert list(iter_frames(flipped, verify_checksums=False)) == [(0, 25, Message(7, 0, None, b"hell!"))]


@pytest.mark.parametrize("length", [-1, -(2**31), 2 * 1024 * 1024 + 1, 2**31 - 1])
@pytest.mark.parametrize("verify", [True, False])
def test_an_impossible_length(length: int, verify: bool) -> None:
    header = frame_header(1, 0, length, 0)
    with pytest.raises(InvalidMessage, match=rf"length {length} is outside \[0, 2097152\]"):
        list(iter_frames(header, verify_checksums=verify))
    assert list(iter_frames(header[:-1], verify_checksums=verify)) == []  # not known yet


def test_the_longest_data_part_can_be_raised() -> None:
    frame = encode_frame(1, 0, bytes(2 * 1024 * 1024 + 1))
    with pytest.raises(InvalidMessage):
        list(iter_frames(frame))
    assert len(list(iter_frames(frame, data_bytes_max=3 * 1024 * 1024))) == 1


@pytest.mark.parametrize("body", [b"", b"\0\0\0", struct.pack(">i", 1), struct.pack(">i", -1) + b"abc"])
def test_an_attribute_that_does_not_fit(body: bytes) -> None:
    frame = encode_frame(1, 1, body)
    with pytest.raises(InvalidMessage, match="attribute") as caught:
        list(iter_frames(frame, 1000))
    assert (caught.value.offset, caught.value.next_offset) == (1000, 1000 + len(frame))
    with pytest.raises(InvalidMessage) as caught:
        list(iter_frames(frame, 1000, verify_checksums=False))
    assert caught.value.next_offset is None


def test_attributes() -> None:
    assert encode_body(b"x", None) == (0, b"x")
    assert encode_body(b"x", "") == (1, b"\0\0\0\0x")
    assert decode_body(1, b"\0\0\0\0x") == ("", b"x")
    assert decode_body(1, b"\0\0\0\1\xffx") == ("\ufffd", b"x")
    assert decode_body(-2, b"x") == (None, b"x")  # other bits mean nothing
    assert decode_body(0x100, b"x") == (None, b"x")
    with pytest.raises(LocalProtocolError, match="no UTF-8 form"):
        encode_body(b"x", "\ud800")


@settings(deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda noise: GOOD + noise), st.booleans())
def test_any_bytes(buffer: bytes, verify: bool) -> None:
    end, broken_at = 0, None
    try:
        for start, next_start, _ in iter_frames(buffer, verify_checksums=verify):
            assert start == end
            end = next_start
    except InvalidMessage as error:
        broken_at = error.offset
    assert broken_at in (None, end)
    assert end <= len(buffer)


@settings(deadline=None)
@given(st.integers(0, len(GOOD) * 8 - 1))
def test_a_flipped_bit_of_length_checksum_or_data_is_never_delivered(bit: int) -> None:
    flipped = bytearray(GOOD)
    flipped[bit // 8] ^= 1 << bit % 8
    covered = bit < 8 * 8 or bit >= 20 * 8  # ids and flags are not: spec 3.3
    try:
        delivered = list(iter_frames(flipped))
    except InvalidMessage:
        return
    assert not covered or delivered == []
