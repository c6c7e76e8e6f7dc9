"""Sampled contexts in what a client puts; bytes that are none are passed over."""

import pytest

from meta_broker.handlers.traced import _sampled
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import MultiPut, Put
from meta_client.protocol.trace_context import with_traceparent

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-0"
SAMPLED, UNSAMPLED = TRACE + "1", TRACE + "0"


def put(attribute: str | None, flag: int | None = None) -> Put:
    found, body = encode_body(b"x", attribute)
    return Put("orders", 0, found if flag is None else flag, None, None, 1, body)


@pytest.mark.parametrize(
    ("attribute", "flag", "found"),
    [
        (with_traceparent("k", SAMPLED), None, [SAMPLED]),
        (with_traceparent("k", UNSAMPLED), None, []),
        (with_traceparent("k", SAMPLED), 0, []),
        ("traceparent", None, []),
        (None, None, []),
    ],
)
def test_of_one_message(attribute: str | None, flag: int | None, found: list[str]) -> None:
    assert list(_sampled(put(attribute, flag))) == found


def test_of_a_batch_whatever_its_bytes() -> None:
    messages = [put(with_traceparent("k", SAMPLED)), put(None), put(with_traceparent(None, UNSAMPLED))]
    frames = b"".join(encode_frame(0, one.flag, bytes(one.body)) for one in messages)
    for body in (frames, frames + b"\xff" * 30, frames[:-1]):
        assert list(_sampled(MultiPut("orders", 0, 3, 0, None, None, 1, body))) == [SAMPLED]
