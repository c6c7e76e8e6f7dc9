"""Stamping a batch: every frame gets its id, alike or not; nothing that is no batch passes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.protocol.messages import HEADER_BYTES, encode_frame, iter_frames
from meta_client.protocol.stamping import stamp_ids

pytestmark = pytest.mark.usefixtures("either_core")

BYTES_MAX = 1000
bodies = st.lists(st.binary(max_size=40), min_size=1, max_size=50) | st.builds(
    lambda body, n: [body] * n, st.binary(max_size=40), st.integers(1, 50)
)
firsts = st.builds(lambda high, low: high << 12 | low, st.integers(0, 2**50), st.integers(0, 4096 - 50))


def batch(parts: list[bytes]) -> bytearray:
    return bytearray(b"".join(encode_frame(0, number & 1 and 2, body) for number, body in enumerate(parts)))


@given(parts=bodies, first=firsts)
def test_ids_follow_one_another_and_nothing_else_changes(parts: list[bytes], first: int) -> None:
    frames = batch(parts)
    stamp_ids(frames, len(parts), first, BYTES_MAX)
    messages = [message for _, _, message in iter_frames(frames)]
    assert [message.id for message in messages] == list(range(first, first + len(parts)))
    assert [message.payload for message in messages] == parts
    assert [message.flag for message in messages] == [number & 1 and 2 for number in range(len(parts))]


@given(parts=bodies, first=firsts, data=st.data())
def test_a_flipped_bit_in_a_length_a_checksum_or_the_data_is_refused(
    parts: list[bytes], first: int, data: st.DataObject
) -> None:
    frames = batch(parts)
    starts = [0]
    for body in parts[:-1]:
        starts.append(starts[-1] + HEADER_BYTES + len(body))
    start = data.draw(st.sampled_from(starts))
    index = starts.index(start)
    places = [*range(start, start + 8), *range(start + HEADER_BYTES, start + HEADER_BYTES + len(parts[index]))]
    frames[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        stamp_ids(frames, len(parts), first, BYTES_MAX)


@given(junk=st.binary(max_size=200), count=st.integers(1, 20))
def test_junk_is_refused_and_never_crashes(junk: bytes, count: int) -> None:
    try:
        stamp_ids(bytearray(junk), count, 0, BYTES_MAX)
    except ValueError:
        return
    assert len(list(iter_frames(junk))) == count


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("messages", [2, 20])
def test_bounds(messages: int, alike: bool) -> None:
    parts = [b"x" * 11] * (messages - 1) + [b"x" * (11 if alike else 12)]
    frames = batch(parts)
    for count, bytes_max in ((messages - 1, 100), (messages + 1, 100), (messages, 10)):
        with pytest.raises(ValueError):
            stamp_ids(bytearray(frames), count, 0, bytes_max)
    with pytest.raises(ValueError):
        stamp_ids(frames[:-1], messages, 0, 100)
    with pytest.raises(ValueError):
        stamp_ids(frames + b"\0", messages, 0, 100)
    negative = bytearray(frames)
    struct.pack_into(">i", negative, 0, -1)
    with pytest.raises(ValueError):
        stamp_ids(negative, messages, 0, 100)
