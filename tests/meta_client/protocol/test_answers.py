"""The result texts that clients read (spec 1.4.4 and 2.3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.records.xid import BranchKey, LocalKey, XaKey, Xid, parse_key
from meta_client.protocol.answers import (
    PutPlace,
    format_keys,
    format_put_place,
    parse_keys,
    parse_offset,
    parse_offset_range,
    parse_put_place,
    parse_vote,
)
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.integers import int32, int64
from meta_client.protocol.xa import XaCode


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (b"100000 0 0", PutPlace(100000, 0, 0)),
        (b"100001 0 -1", PutPlace(100001, 0, None)),
        (b"-5468930997472964608 9 9223372036854775807", PutPlace(-5468930997472964608, 9, 2**63 - 1)),
    ],
)
def test_put_place_both_ways(message: bytes, place: PutPlace) -> None:
    assert parse_put_place(message) == place
    assert format_put_place(place) == message


@pytest.mark.parametrize(
    "message", [b"", b"1 2", b"1 2 3 4", b"1  2 3", b"1 2 x", b"1 2 3 ", b"1 2 -2", b"1 2147483648 3"]
)
def test_no_put_place(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a put's answer"):
        parse_put_place(message)


@pytest.mark.parametrize("message", [b"", b"1 2", b"1 2 3 4", b"-1 2 2", b"3 2 3", b"1 2 3", b"1 3 x"])
def test_no_range_of_offsets(message: bytes) -> None:
    """Neither three numbers, nor a start, an end and an offset between them."""
    with pytest.raises(RemoteProtocolError, match="is not an offsets' answer"):
        parse_offset_range(message)


_INTEGERS = st.one_of(
    st.integers(-(2**64), 2**64).map(lambda number: b"%d" % number),
    st.integers(-(2**33), 2**33).map(lambda number: b"%d" % number),
    st.from_regex(rb"[-+]?[0-9]{1,21}", fullmatch=True),
    st.binary(max_size=3),
)


@given(st.lists(_INTEGERS, min_size=2, max_size=4))
def test_a_put_place_is_three_integers(words: list[bytes]) -> None:
    """The integers are in range, and written as all integers of the protocol are."""
    message = b" ".join(words)
    try:
        message_id, partition, offset = message.split(b" ")
        expected = (int64(message_id), int32(partition), int64(offset))
        if expected[2] < -1:
            raise ValueError
    except ValueError:
        with pytest.raises(RemoteProtocolError, match="is not a put's answer"):
            parse_put_place(message)
    else:
        place = parse_put_place(message)
        assert (place.message_id, place.partition, -1 if place.offset is None else place.offset) == expected


def test_offset_and_vote() -> None:
    assert parse_offset(b"1044") == 1044
    assert parse_vote(b"0") is XaCode.XA_OK
    assert parse_vote(b"3") is XaCode.XA_RDONLY
    for message in (b"", b"0 ", b"x"):
        with pytest.raises(RemoteProtocolError, match="is not an offset"):
            parse_offset(message)
    for message in (b"", b"1", b"00", b"3\r\n"):
        with pytest.raises(RemoteProtocolError, match="is not a vote"):
            parse_vote(message)


@pytest.mark.scenario("T06")
def test_keys_both_ways() -> None:
    keys: list[BranchKey] = [LocalKey("s1", 1), XaKey(Xid(100, b"g1", b"b1"), "uq"), parse_key("XID:1:::消息")]
    assert format_keys(keys) == "TX:s1:1\r\nXID:100:6731:6231:uq\r\nXID:1:::消息".encode()
    assert parse_keys(format_keys(keys)) == keys
    assert format_keys([]) == b""
    assert parse_keys(b"") == parse_keys(b" ") == []
    for message in (b"TX:s1:1\r\n", b"null", b"TX:s1:1\nTX:s1:2", b"\xff"):
        with pytest.raises(RemoteProtocolError, match="is not a list of transaction keys"):
            parse_keys(message)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_answer(message: bytes) -> None:
    for parse in (parse_put_place, parse_offset, parse_vote, parse_keys):
        text = ""
        try:
            parse(message)
        except RemoteProtocolError as error:
            text = str(error)
        assert "\n" not in text
