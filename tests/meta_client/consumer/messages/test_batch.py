"""A fetch's answer as a listener sees it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_client.consumer.messages.batch import decode_batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import HEADER_BYTES, encode_body, encode_frame, iter_frames
from zk.tree.nodes import Partition

pytestmark = pytest.mark.usefixtures("either_core")

PARTITION = Partition(0, 3)
HELLO = bytes.fromhex("000000053610a68600000000000186a00000000068656c6c6f")  # spec 3.5
ATTRIBUTE = bytes.fromhex("0000000d4b62e51c00000000000186a100000001000000046174747268656c6c6f")


def test_the_specifications_messages() -> None:
    batch, broken = decode_batch("meta-test", PARTITION, 1000, HELLO + ATTRIBUTE + HELLO[:-1])
    assert broken is None
    assert batch is not None
    assert (batch.offset, batch.next_offset) == (1000, 1058)
    first, second = batch.messages
    assert first == ("meta-test", PARTITION, 1000, 100_000, 0, None, b"hello", 1025)
    assert (second.offset, second.attribute, second.payload, second.message_id) == (1025, "attr", b"hello", 100_001)


@pytest.mark.scenario("B08")
def test_what_is_sound_before_a_broken_frame_is_delivered() -> None:
    batch, broken = decode_batch("t", PARTITION, 0, HELLO + HELLO[:-1] + b"!" + HELLO)
    assert batch is not None
    assert (len(batch.messages), batch.next_offset) == (1, 25)
    assert broken is not None
    assert broken.offset == 25
    assert decode_batch("t", PARTITION, 0, HELLO[:-1] + b"!")[0] is None


@pytest.mark.scenario("B08")
@given(
    st.lists(st.tuples(st.binary(max_size=50), st.none() | st.text(st.characters(exclude_categories=["Cs"])))),
    st.integers(0, 2**62),
    st.data(),
)
def test_any_cut_delivers_a_prefix_and_ends_where_reading_goes_on(
    contents: list[tuple[bytes, str | None]], offset: int, data: st.DataObject
) -> None:
    frames = [encode_frame(number, *encode_body(*content)) for number, content in enumerate(contents)]
    body = b"".join(frames)
    cut = data.draw(st.integers(0, len(body)))
    batch, broken = decode_batch("t", PARTITION, offset, body[:cut])
    assert broken is None
    found = [] if batch is None else batch.messages
    assert [(m.payload, m.attribute) for m in found] == contents[: len(found)]
    whole = sum(map(len, frames[: len(found)]))
    assert cut - whole < len((*frames, b"!" * (cut + 1))[len(found)])
    if batch is not None:
        assert (batch.offset, batch.next_offset) == (offset, offset + whole)


def one_by_one(offset: int, body: bytes) -> tuple[list[ReceivedMessage], InvalidMessage | None]:
    """Return the expected result of decode_batch, by a plain reading of the format."""
    found: list[ReceivedMessage] = []
    try:
        for start, after, it in iter_frames(body, offset):
            found.append(ReceivedMessage("t", PARTITION, start, it.id, it.flag, it.attribute, it.payload, after))
    except InvalidMessage as error:
        return found, error
    return found, None


runs = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), st.sampled_from([0, 0, 0, 1, 2])), max_size=6)


@settings(deadline=None)
@given(runs, st.integers(0, 2**62), st.data())
def test_neighbours_that_are_alike_are_decoded_as_one_by_one(
    runs: list[tuple[int, int, int]], offset: int, data: st.DataObject
) -> None:
    """Runs of one length, some with attribute blocks or other flags, perhaps cut off, perhaps with a byte flipped."""
    frames = [
        encode_frame(number, flag, bytes(length + 4 * (flag & 1)))
        for count, length, flag in runs
        for number in range(count)
    ]
    body = bytearray(b"".join(frames))
    del body[len(body) - data.draw(st.integers(0, min(60, len(body)))) :]
    if body and data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    batch, broken = decode_batch("t", PARTITION, offset, bytes(body))
    expected, expected_broken = one_by_one(offset, bytes(body))
    assert (batch.messages if batch else []) == expected
    assert repr(broken) == repr(expected_broken)
    if batch is not None:
        assert batch.messages[0].offset == batch.offset == offset
        assert all(type(message) is ReceivedMessage for message in batch.messages)
        last = batch.messages[-1]
        attribute_bytes = 0 if last.attribute is None else 4 + len(last.attribute)
        assert batch.next_offset == last.offset + HEADER_BYTES + attribute_bytes + len(last.payload)
