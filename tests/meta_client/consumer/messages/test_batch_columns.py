"""A batch's columns: the same as its messages, of all kinds and cuts, and safe from buffers that are used again."""

import copy
import gc
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_client.consumer.messages.batch import Batch, decode_batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.messages import HEADER_BYTES, encode_body, encode_frame
from meta_client.protocol.responses import Value
from zk.tree.nodes import Partition

pytestmark = pytest.mark.usefixtures("either_core")

PARTITION = Partition(0, 3)

runs = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 30), st.none() | st.sampled_from(["", "key"])), min_size=1, max_size=6
)


def decoded(body: bytes | memoryview, offset: int = 5000) -> Batch:
    batch, broken = decode_batch("t", PARTITION, offset, body)
    assert batch is not None
    assert broken is None
    return batch


def frames(count: int, length: int, attribute: str | None = None, first_id: int = 0) -> bytes:
    return b"".join(
        encode_frame(first_id + number, *encode_body(bytes([number % 251]) * length, attribute))
        for number in range(count)
    )


@settings(deadline=None)
@given(runs)
def test_columns_say_what_the_messages_say(runs: list[tuple[int, int, str | None]]) -> None:
    body = b"".join(frames(*run, first_id=number << 40) for number, run in enumerate(runs))
    batch, messages = decoded(body), decoded(body).messages
    assert len(batch) == len(batch.payloads) == len(batch.offsets) == len(messages) == sum(run[0] for run in runs)
    assert list(batch.payloads) == [message.payload for message in messages]
    assert [batch.payloads[index] for index in range(-len(messages), 0)] == list(batch.payloads)
    assert batch.payloads[1:-1:2] == list(batch.payloads)[1:-1:2]
    with pytest.raises(IndexError):
        batch.payloads[len(messages)]
    assert list(batch.offsets) == [message.offset for message in messages]
    assert batch.last == messages[-1]
    assert list(batch) == messages
    assert batch == Batch("t", PARTITION, 5000, 5000 + len(body), messages)
    for each in (batch, Batch("t", PARTITION, 5000, 5000 + len(body), messages)):
        table = each.to_arrow()
        assert table.column_names == ["offset", "message_id", "attribute", "payload"]
        assert [tuple(row.values()) for row in table.to_pylist()] == [
            (message.offset, message.message_id, message.attribute, message.payload) for message in messages
        ]
        assert table.validate(full=True) is None


def test_payloads_of_one_length_as_an_array_without_a_copy() -> None:
    body = frames(500, 10)
    array = decoded(body).payloads.to_numpy()
    assert array.dtype == np.dtype("V10")
    assert array.tolist() == [bytes([number % 251]) * 10 for number in range(500)]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    for other in (frames(10, 3) + frames(10, 4), frames(20, 3, "key"), frames(20, 0), frames(3, 5)):
        with pytest.raises(ValueError, match="to_arrow"):
            decoded(other).payloads.to_numpy()


def test_a_batch_of_objects_has_columns_too() -> None:
    message = ReceivedMessage("t", PARTITION, 7, 70, 0, "key", b"payload", 40)
    batch = Batch.of(message)
    assert (list(batch.payloads), list(batch.offsets), batch.last, len(batch)) == ([b"payload"], [7], message, 1)
    assert batch.to_arrow().to_pylist() == [{"offset": 7, "message_id": 70, "attribute": "key", "payload": b"payload"}]
    assert batch != Batch("t", PARTITION, 7, 40, [])


def test_a_batch_can_be_handed_to_another_process() -> None:
    batch = decoded(memoryview(bytearray(frames(100, 10) + frames(3, 5, "key"))))
    there = pickle.loads(pickle.dumps(batch))
    assert (there, there.last, list(there.payloads)) == (batch, batch.last, list(batch.payloads))
    assert copy.copy(batch) == batch


@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch,
        lambda batch: batch.payloads,
        lambda batch: batch.payloads.to_numpy()[3:5],
        lambda batch: iter(batch.payloads),
        lambda batch: batch.to_arrow().column("payload"),
    ],
)
def test_what_is_kept_of_a_batch_does_not_change_when_the_next_answers_arrive(keep: Callable[[Batch], object]) -> None:
    decoder = ResponseDecoder(buffers=BodyBuffers(1 << 20))

    def arrive(length: int) -> Batch:
        body = frames(60_000 // (HEADER_BYTES + length), length)
        wire = b"value %d 1\r\n%b" % (len(body), body)
        assert decoder.receive_data(wire[:30]) == []
        (value,) = decoder.receive_data(wire[30:])
        assert isinstance(value, Value)
        assert isinstance(value.body, memoryview)
        return decoded(value.body)

    batch = arrive(100)
    expected = list(batch.payloads)
    kept = keep(batch)
    del batch
    gc.collect()
    for length in (101, 77, 100, 33):
        arrive(length)
    match kept:
        case Batch():
            assert [message.payload for message in kept.messages] == list(kept.payloads) == expected
        case np.ndarray():
            assert kept.tolist() == expected[3:5]
        case _ if hasattr(kept, "to_pylist"):
            assert kept.to_pylist() == expected
        case _:
            assert list(kept) == expected  # type: ignore[call-overload]


def test_offsets_beyond_63_bits_are_not_cut_off() -> None:
    """No broker gets there: as large as Python has them, with the core and without."""
    size = HEADER_BYTES + 5
    start = 2**63 - 3 * size
    messages = decoded(frames(8, 5), start).messages
    assert [it.offset for it in messages] == [start + number * size for number in range(8)]
    assert messages[-1].next_offset == start + 8 * size
