"""Many messages at once: what may be given for their payloads, and how they are divided."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.producer.message_run import MessageRun, encode_run, payload_list
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import DATA_BYTES_MAX, FLAG_ATTRIBUTE, HEADER_BYTES, encode_body

WORDS = [b"one", b"", b"three\0", b"four" * 100]


@pytest.mark.parametrize(
    "payloads",
    [
        WORDS,
        tuple(WORDS),
        iter(WORDS),
        np.array(WORDS, dtype=object),
        pa.array(WORDS, pa.binary()),
        pa.array(WORDS, pa.large_binary()),
        pa.array(WORDS, pa.binary()).cast(pa.binary_view()),
        pa.array([b"before", *WORDS, b"after"], pa.binary())[1:-1],
        pa.chunked_array(
            [pa.array(WORDS[:1], pa.binary()), pa.array([], pa.binary()), pa.array(WORDS[1:], pa.binary())]
        ),
    ],
)
def test_payloads_of_every_kind(payloads: Iterable[Any]) -> None:
    assert payload_list(payloads) == WORDS


def test_payloads_of_one_width() -> None:
    wide = [b"ab\0", b"cde"]
    assert payload_list(np.array(wide, dtype="V3")) == wide
    assert payload_list(np.array(wide, dtype="S3")) == [b"ab", b"cde"]  # numpy's own rule
    assert payload_list(np.array(wide * 2, dtype="V3")[::2]) == [wide[0]] * 2
    assert payload_list(pa.array(wide, pa.binary(3))) == wide
    assert payload_list(pa.array([b"", b""], pa.binary())) == [b"", b""]
    assert payload_list(pa.array([], pa.binary())) == []


@pytest.mark.parametrize(
    ("payloads", "text"),
    [
        (b"one", "send_async takes that"),
        ("text", "send_async takes that"),
        (np.zeros((2, 2), "S1"), "in 2 dimensions"),
        (np.zeros(2, "i4"), "not int32"),
        (np.zeros(2, [("a", "i4")]), "not"),
        (pa.array([1, 2]), "not int64"),
        (pa.array(["a"]), "cast it to binary"),
        (pa.array([b"a", None, b"b"]), "message 1 of 3: a payload is bytes, not null"),
        (pa.chunked_array([pa.array([b"a"]), pa.array([b"c", None])]), "message 2 of 3"),
    ],
)
def test_what_can_be_no_payloads(payloads: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        payload_list(payloads)


def test_a_bad_message_is_named() -> None:
    with pytest.raises(TypeError, match="message 2 of 3: a payload is bytes, not str"):
        encode_run("orders", [b"a", b"b", "c"], None, None)  # what a caller gets wrong
    with pytest.raises(LocalProtocolError, match=r"message 1 of 2: .* is longer than"):
        encode_run("orders", [b"a", bytes(DATA_BYTES_MAX + 1)], None, None)
    with pytest.raises(TypeError, match="message 0 of 2: an attribute is a str"):
        encode_run("orders", [b"a", b"b"], [b"key", None], None)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="1 keys for 2 payloads"):
        encode_run("orders", [b"a", b"b"], ["key"], None)


def test_keys_are_attributes_and_the_lists_are_the_run_s_own() -> None:
    payloads, keys = [b"a", b"b"], ["key", None]
    run, _, given_keys = encode_run("orders", payloads, keys, None)
    plain, _, _ = encode_run("orders", payloads, None, None)
    payloads[0], keys[1] = b"changed", "changed"
    assert run.bodies == [encode_body(b"a", "key")[1], b"b"]
    assert run.flags == [FLAG_ATTRIBUTE, 0]
    assert given_keys == ["key", None]
    assert plain.bodies == [b"a", b"b"]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 400), st.integers(1, 50), st.booleans())
def test_a_run_is_divided_by_bytes_and_count(sizes: list[int], bytes_max: int, count_max: int, alike: bool) -> None:
    sizes = [sizes[0]] * len(sizes) if alike else sizes
    run = MessageRun([bytes(size) for size in sizes], [0] * len(sizes))
    assert run.bytes == sum(sizes) + HEADER_BYTES * len(sizes)
    for start in range(len(sizes)):
        stop = run.stop(start, bytes_max, count_max)
        fits = [end for end in range(start, len(sizes) + 1) if end - start <= count_max]
        fits = [end for end in fits if sum(sizes[start:end]) + HEADER_BYTES * (end - start) <= bytes_max]
        assert stop == max(fits)
        first = HEADER_BYTES + sizes[start]
        rest = sum(sizes[start:]) + HEADER_BYTES * (len(sizes) - start)
        assert run.size(start, len(sizes)) == rest
        assert run.need(start, bytes_max) == max(first, min(bytes_max, rest))
