"""The text of a find's answer, both ways, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.protocol.answers import Found, FoundAt, format_found, parse_found
from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import LocalProtocolError, RemoteProtocolError
from meta_client.protocol.limits import FIND_KEY_BYTES_MAX, FIND_MATCHES_MAX
from meta_client.protocol.requests import Find

offsets = st.integers(0, 2**63 - 1)
matches = st.dictionaries(offsets, st.integers(20, 2**31 - 1), max_size=5)


@given(st.tuples(offsets, offsets).map(sorted), matches)
def test_both_ways(ends: list[int], sizes: dict[int, int]) -> None:
    found = Found(ends[0], ends[1], [FoundAt(*each) for each in sorted(sizes.items())])
    assert parse_found(format_found(found)) == found


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"1",
        b"2 1",
        b"-1 1",
        b"1 1 ",
        b"1 1 5",
        b"1 1 5:",
        b"1 1 5:19",
        b"1 1 -5:25",
        b"9 9 5:25 5:25",
        b"9 9 6:25 5:25",
    ],
)
def test_no_answer(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a find's answer"):
        parse_found(message)


def test_the_longest_find_fits_into_a_line_and_no_longer_one_is_written() -> None:
    longest = Find("t" * 200, 65_535, 2**63 - 1, FIND_MATCHES_MAX, b"\xff" * FIND_KEY_BYTES_MAX, -(2**31))
    assert RequestDecoder().receive_data(b"".join(encode_request(longest))) == [longest]
    for wrong in (
        Find("t", 0, 0, 0, 1, 1),
        Find("t", 0, 0, FIND_MATCHES_MAX + 1, 1, 1),
        Find("t", 0, 0, 1, bytes(FIND_KEY_BYTES_MAX + 1), 1),
        Find("t", 0, 0, 1, 2**63, 1),
    ):
        with pytest.raises(LocalProtocolError):
            encode_request(wrong)


@pytest.mark.parametrize(
    "words",
    [
        b"0 0 1 key=6 1",
        b"0 0 1 key=6A 1",
        b"0 0 1 key=61\t 1",
        b"0 0 1 id= 1",
        b"0 0 1 x=1 1",
        b"0 0 1 61 1",
        b"0 0 0 id=1 1",
        b"0 0 257 id=1 1",
        b"0 0 1 1",
        b"0 0 1 id=1 1 1",
        b"0 0 1 id=9223372036854775808 1",
        b"0 0 1 key=" + b"00" * (FIND_KEY_BYTES_MAX + 1) + b" 1",
    ],
)
def test_what_ends_the_connection(words: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RequestDecoder().receive_data(b"find t " + words + b"\r\n")
