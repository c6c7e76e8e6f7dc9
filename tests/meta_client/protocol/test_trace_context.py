"""Trace context at the end of an attribute: there and back, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer.messages.batch import decode_batch
from meta_client.protocol.messages import encode_body, encode_frame, iter_frames
from meta_client.protocol.trace_context import is_traceparent, split_traceparent, with_traceparent
from zk.tree.nodes import Partition

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ATTRIBUTES = st.none() | st.text()


@given(ATTRIBUTES)
def test_there_and_back(attribute: str | None) -> None:
    assert split_traceparent(with_traceparent(attribute, PARENT)) == (attribute, PARENT)


@given(st.text())
def test_an_attribute_without_one_is_left_alone(attribute: str) -> None:
    assert split_traceparent(attribute) == (attribute, None)


@pytest.mark.parametrize(
    "attribute",
    [
        f"traceparent={PARENT} ",
        f"customer traceparent={PARENT}",  # no separator: somebody's own text
        "traceparent=00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "traceparent=01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        f"traceparent={PARENT.upper()}",
        f"traceparent={PARENT.replace('4', chr(0x664))}",  # a digit, not of ASCII
    ],
)
def test_what_is_not_quite_one_stays_an_attribute(attribute: str) -> None:
    assert split_traceparent(attribute) == (attribute, None)
    assert not is_traceparent(attribute.removeprefix("traceparent="))


@pytest.mark.parametrize("attribute", [None, "", "customer-17", "käse\N{EURO SIGN}"])
def test_a_frame_carries_it_and_a_genuine_reader_sees_an_attribute(attribute: str | None) -> None:
    flag, data = encode_body(b"payload", with_traceparent(attribute, PARENT))
    frame = encode_frame(7, flag, data)
    ((_, _, message),) = iter_frames(frame)
    assert (message.attribute, message.payload, message.traceparent) == (attribute, b"payload", PARENT)
    batch, broken = decode_batch("orders", Partition(0, 1), 100, frame * 20)
    assert broken is None
    assert batch is not None
    assert len(batch.messages) == 20
    for received in batch.messages:
        assert (received.attribute, received.payload, received.traceparent) == (attribute, b"payload", PARENT)
        assert received._replace(payload=b"").traceparent is None
    length = int.from_bytes(data[:4], "big")  # as spec 3.3 has it
    genuine, payload = data[4 : 4 + length].decode(), data[4 + length :]
    assert payload == b"payload"
    assert genuine == (f"{attribute}\x1f" if attribute is not None else "") + f"traceparent={PARENT}"


def test_a_message_without_one_has_none() -> None:
    batch, _ = decode_batch("orders", Partition(0, 1), 0, encode_frame(1, 0, b"plain"))
    assert batch is not None
    assert batch.messages[0].traceparent is None
