"""A fetch's answer as a listener sees it."""

from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer.batch import decode_batch
from meta_client.protocol.messages import encode_body, encode_frame
from zk.nodes import Partition

PARTITION = Partition(0, 3)
HELLO = bytes.fromhex("000000053610a68600000000000186a00000000068656c6c6f")  # spec 3.5
ATTRIBUTE = bytes.fromhex("0000000d4b62e51c00000000000186a100000001000000046174747268656c6c6f")


def test_the_specifications_messages() -> None:
    batch, broken = decode_batch("meta-test", PARTITION, 1000, HELLO + ATTRIBUTE + HELLO[:-1])
    assert broken is None
    assert batch is not None
    assert (batch.offset, batch.next_offset) == (1000, 1058)
    first, second = batch.messages
    assert first == ("meta-test", PARTITION, 1000, 100_000, 0, None, b"hello")
    assert (second.offset, second.attribute, second.payload, second.message_id) == (1025, "attr", b"hello", 100_001)


def test_what_is_sound_before_a_broken_frame_is_delivered() -> None:
    batch, broken = decode_batch("t", PARTITION, 0, HELLO + HELLO[:-1] + b"!" + HELLO)
    assert batch is not None
    assert (len(batch.messages), batch.next_offset) == (1, 25)
    assert broken is not None
    assert broken.offset == 25
    assert decode_batch("t", PARTITION, 0, HELLO[:-1] + b"!")[0] is None


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
