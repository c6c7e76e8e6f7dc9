"""Frames of a batch made by columns: byte for byte those that are made one by one."""

from hypothesis import given
from hypothesis import strategies as st

from meta_client.protocol.frame_columns import encode_frames, have_sound_checksums
from meta_client.protocol.messages import HEADER_BYTES, encode_frame

flags = st.integers(-(2**31), 2**31 - 1)
messages = st.tuples(flags, st.binary(max_size=40))
batches = st.lists(messages, min_size=1, max_size=50) | st.builds(
    lambda message, count: [message] * count, messages, st.integers(1, 50)
)
same_length = st.integers(0, 40).flatmap(
    lambda length: st.lists(st.binary(min_size=length, max_size=length), min_size=1, max_size=50)
)


@given(batch=batches | st.builds(lambda flag, bodies: [(flag, body) for body in bodies], flags, same_length))
def test_a_batch_is_its_frames_one_after_the_other(batch: list[tuple[int, bytes]]) -> None:
    expected = b"".join(encode_frame(0, flag, body) for flag, body in batch)
    assert encode_frames([flag for flag, _ in batch], [body for _, body in batch]) == expected


@given(bodies=same_length, data=st.data())
def test_one_bit_of_any_checksum_or_data_part_is_missed(bodies: list[bytes], data: st.DataObject) -> None:
    frames = bytearray(encode_frames([0] * len(bodies), bodies))
    size = len(frames) // len(bodies)
    assert have_sound_checksums(frames, len(frames), size)
    start = size * data.draw(st.integers(0, len(bodies) - 1))
    places = [*range(start + 4, start + 8), *range(start + HEADER_BYTES, start + size)]
    frames[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    assert not have_sound_checksums(frames, len(frames), size)
