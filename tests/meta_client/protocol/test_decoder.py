"""Inputs that the decoders refuse, and their bounds (spec 1.1)."""

import pytest

from journal.records.xid import LocalKey, parse_key
from meta_client.protocol import request_lines
from meta_client.protocol.buffer import ReceiveBuffer
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.limits import FIND_KEY_BYTES_MAX, Limits
from meta_client.protocol.requests import (
    Dropped,
    Get,
    Put,
    Request,
    Stats,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import Result, Value
from meta_client.protocol.status import Status

pytestmark = pytest.mark.usefixtures("either_core")

NEVER_A_REQUEST = {
    # wire: what the error must say
    b"\r\n": "unknown command",
    b" \r\n": "unknown command",
    b" put t 0 0 0 1\r\n": "unknown command",
    b"hello 1\r\n": "unknown command",
    b"PUT t 0 0 0 1\r\n": "unknown command",
    b"\x00\xff\xfe\r\n": "unknown command",
    b"p t 0 0 0 1\r\n": "unknown command",
    b"puts t 0 0 0 1\r\n": "unknown command",
    b"geT t g 0 0 1 1\r\n": "unknown command",
    b"trans null s RECOVER 1\r\n": "unknown command",
    b"sink t 0 0 0 1 1\r\n": "unknown command",
    b"offsett t g 0 0 1\r\n": "unknown command",
    b"result 200 0 1\r\n": "unknown command",
    b"value 0 1\r\n": "unknown command",
    # a token too few, or too many where that counts
    b"put\r\n": "6 to 8 tokens, not 1",
    b"put t 0 0 0\r\n": "6 to 8 tokens, not 5",
    b"put t 0 0 0 1 TX:s:1 1 1\r\n": "6 to 8 tokens, not 9",
    b"get t g 0 0 1\r\n": "7 tokens are needed, 6 came",
    b"offset t g 0 0\r\n": "6 tokens are needed, 5 came",
    b"sync t 0 0 0 1\r\n": "7 or 8 tokens, not 6",
    b"sync t 0 0 0 1 -1 1 1\r\n": "7 or 8 tokens, not 9",
    b"transaction TX:s:1 s BEGIN\r\n": "5 to 7 tokens, not 4",
    b"transaction TX:s:1 s BEGIN 1 q 1 1\r\n": "5 to 7 tokens, not 8",
    b"mput t 0 1 0 1\r\n": "mput has 7 to 9 tokens, not 6",
    b"mput t 0 1 0 1 p:1 TX:s:1 1 1\r\n": "mput has 7 to 9 tokens, not 10",
    b"offsets t 0 1\r\n": "offsets has 5 tokens, not 4",
    b"count t 0 0 1 1\r\n": "count has 5 tokens, not 6",
    b"find t 0 0 1 id=1\r\n": "find has 7 tokens, not 6",
    b"reset t g 0 0 0\r\n": "reset has 7 tokens, not 6",
    b"checkpoint\r\n": "checkpoint has 2 tokens, not 1",
    b"replicate 1 1\r\n": "replicate has 2 tokens, not 3",
    b"auth SCRAM-SHA-256 1\r\n": "auth has 4 tokens, not 3",
    b"branch show 1\r\n": "branch show has 4 tokens, not 3",
    b"branch ledger XID:1:67:62:q 1\r\n": "branch ledger has 3 tokens, not 4",
    # what a newer verb does not take
    b"mput t 0 0 0 1 1\r\n": "a batch has 1 to ",
    b"mput t 0 1 0 1 :1 1\r\n": "a producer's name has 1 to ",
    b"mput t 0 1 0 1 p:-1 1\r\n": "batch number -1 is negative",
    b"find t 0 0 0 id=1 1\r\n": "a find names 1 to ",
    b"find t 0 0 1 key=6A 1\r\n": "is neither id=<number> nor key=<hexadecimal>",
    b"find t 0 0 1 key=" + b"6a" * (FIND_KEY_BYTES_MAX + 1) + b" 1\r\n": "is neither id=<number> nor key=",
    b"find t 0 0 1 body=6a 1\r\n": "is neither id=<number> nor key=<hexadecimal>",
    b"auth SCRAM-SHA-256 aGR= 1\r\n": "a message of auth is base64 of ",
    b"topic create t partitions 1\r\n": "a setting is key=value, not 'partitions'",
    b"branch show TX:s:1 1\r\n": "TX:s:1 is no XA branch",
    # numbers that are none
    b"put t x 0 0 1\r\n": "b'x' is not an int32",
    b"put t 0 0x0 0 1\r\n": "b'0x0' is not an int32",
    b"put t 0 0 1.0 1\r\n": "b'1.0' is not an int32",
    b"put t 0 1_0 0 1\r\n": "b'1_0' is not an int32",
    b"put t 0 \t1 0 1\r\n": "is not an int32",
    b"put t  0 0 1\r\n": "b'' is not an int32",
    b"put t 0 0 0 -1 -\r\n": "b'-' is not an int32",
    b"put t 0 0 0 --1 1\r\n": "b'--1' is not an int32",
    b"put t 0 0 0 -1 2147483648\r\n": "is not an int32",
    b"put t 0 0 0 -1 -2147483649\r\n": "is not an int32",
    "put t ٣ 0 0 1\r\n".encode(): "is not an int32",
    b"put t 0 0 0 -1 000000000000000000001\r\n": "is not an int32",
    b"get t g 0 9223372036854775808 1 1\r\n": "is not an int64",
    b"get t g 0 -9223372036854775809 1 1\r\n": "is not an int64",
    b"get t g 0 0 1 one\r\n": "b'one' is not an int32",
    b"offset t g 0 x 1\r\n": "b'x' is not an int64",
    b"sync t 0 0 0 x 1\r\n": "b'x' is not an int64",
    b"version x\r\n": "b'x' is not an int32",
    b"vector  1\r\n": "b'' is not an int32",
    b"stats topics x\r\n": "b'x' is not an int32",
    b"fetch t g 0 0 1 1 1\r\n": "fetch has 9 or 10 tokens, not 8",
    b"fetch t g 0 0 1 1 1 1 1 1\r\n": "fetch has 9 or 10 tokens, not 11",
    b"fetch t g 0 0 1 1 1 -1 1\r\n": "epoch -1 is negative",
    b"fetch t g 0 0 1 1 forever 1\r\n": "b'forever' is not an int32",
    # lengths
    b"put t 0 -1 0 1\r\n": "body length -1 is negative",
    b"sync t 0 -1 0 1 1\r\n": "body length -1 is negative",
    # transaction keys, verbs, qualifiers
    b"put t 0 0 0 1 null 1\r\n": "'null' is not TX:",
    b"put t 0 0 0  1\r\n": "is not an int32",
    b"put t 0 0 0 +1 1\r\n": "'+1' is not TX:",
    b"put t 0 0 0 1 TX:s 1\r\n": "'TX:s' is not TX:",
    b"put t 0 0 0 1 TX:s:2147483648 1\r\n": "is not an int32",
    b"put t 0 0 0 1 TX:[::1]-1-1:1 1\r\n": "is not TX:",
    b"put t 0 0 0 1 XID:1:67:62 1\r\n": "is not TX:",
    b"put t 0 0 0 1 XID:1:67:62: 1\r\n": "is blank",
    b"put t 0 0 0 1 XID:1:6z:62:uq 1\r\n": "is not hexadecimal",
    b"transaction xid s BEGIN 1\r\n": "'xid' is not TX:",
    b"transaction  s BEGIN 1\r\n": "'' is not TX:",
    b"transaction TX:s:1 s begin 1\r\n": "'begin' is not a valid TransactionVerb",
    b"transaction TX:s:1 s BEGIN  1\r\n": "the unique qualifier is empty",
    b"transaction TX:s:1 s BEGIN 3  1\r\n": "the unique qualifier is empty",
    b"transaction TX:s:1 s BEGIN soon q 1\r\n": "b'soon' is not an int32",
    b"transaction TX:s:1 s BEGIN 2147483648 1\r\n": "is not an int32",
    # text
    b"put \xff 0 0 0 1\r\n": "can't decode byte 0xff",
    b"stats \xc3 1\r\n": "can't decode byte 0xc3",
    # bounds
    b"put " + b"t" * 8190: "longer than line_bytes_max 8192",
    b"get " + b"t" * 8189 + b"\r\n": "longer than line_bytes_max 8192",
}
NEVER_A_RESPONSE = {
    b"\r\n": "unknown response",
    b"version 1\r\n": "unknown response",
    b"values 0 1\r\n": "unknown response",
    b"results 200 0 1\r\n": "unknown response",
    b"put t 0 0 0 1\r\n": "unknown response",
    b"HTTP/1.1 400 Bad Request\r\n": "unknown response",
    b"result 200 0\r\n": "4 tokens are expected, 3 came",
    b"result 200 0 1 1\r\n": "4 tokens are expected, 5 came",
    b"result ok 0 1\r\n": "b'ok' is not an int32",
    b"result 200 -1 1\r\n": "body length -1 is negative",
    b"value 0\r\n": "3 tokens are expected, 2 came",
    b"value -1 1\r\n": "body length -1 is negative",
    b"value 16777217 1\r\n": "a body of 16777217 bytes is longer than body_bytes_max 16777216",
    b"value 0 4294967296\r\n": "is not an int32",
    b"data 0 0 1\r\n": "5 tokens are expected, 4 came",
    b"data 0 0 s1 1 2\r\n": "5 tokens are expected, 6 came",
    b"data 0 0 s1 -1 2 1\r\n": "-1 bytes and 2 ms behind: neither can be negative",
    b"data 0 0 s1 1 -2 1\r\n": "1 bytes and -2 ms behind: neither can be negative",
    b"data 0 -1 m 1\r\n": "log end -1 is negative",
    b"data 0 0 x 1\r\n": "the replica to read from is neither m nor s with a number",
    b"data 0 0 s1234567890 1\r\n": "the replica to read from is neither",
    b"data 16777217 0 m 1\r\n": "a body of 16777217 bytes is longer than body_bytes_max 16777216",
}


def assert_refused(decoder: RequestDecoder | ResponseDecoder, wire: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.receive_data(wire)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("close the connection")
    assert "\n" not in str(caught.value)
    assert decoder.buffered_bytes == 0
    with pytest.raises(RemoteProtocolError, match="close the connection"):
        decoder.receive_data(b"version 1\r\n")


@pytest.mark.parametrize(("wire", "reason"), NEVER_A_REQUEST.items())
def test_never_a_request(wire: bytes, reason: str) -> None:
    assert_refused(RequestDecoder(), wire, reason)


@pytest.mark.parametrize(("wire", "reason"), NEVER_A_RESPONSE.items())
def test_never_a_response(wire: bytes, reason: str) -> None:
    assert_refused(ResponseDecoder(), wire, reason)


def test_a_body_has_no_line_break_after_it() -> None:
    assert_refused(RequestDecoder(), b"put t 0 1 0 1\r\nx\r\nversion 1\r\n", "b'': unknown command")


def test_what_came_before_the_bad_bytes_is_not_lost() -> None:
    decoder = RequestDecoder()
    assert decoder.receive_data(b"version 1\r\nver") == [Version(1)]
    with pytest.raises(RemoteProtocolError):
        decoder.receive_data(b"sion 2\r\nversion 3\r\nhello\r\nversion 4\r\n")
    assert decoder.completed_before_failure == [Version(2), Version(3)]


@pytest.mark.parametrize(
    ("wire", "request_"),
    [
        (b"put t 0 5 0 11\r\nhello", Put("t", 0, 0, None, None, 11, b"hello")),
        (b"put t 0 5 0 907060870 11\r\nhello", Put("t", 0, 0, 907060870, None, 11, b"hello")),
        (b"put t 0 5 0 TX:s:1 11\r\nhello", Put("t", 0, 0, None, LocalKey("s", 1), 11, b"hello")),
        (b"put t 0 5 0 907060870 TX:s:1 11\r\nhello", Put("t", 0, 0, 907060870, LocalKey("s", 1), 11, b"hello")),
        (b"put t 0 5 0 -2 11\r\nhello", Put("t", 0, 0, -2, None, 11, b"hello")),
        (b"put t 0 +5 +0 +11\r\nhello", Put("t", 0, 0, None, None, 11, b"hello")),
        ("put 消息 -1 0 -1 -11\r\n".encode(), Put("消息", -1, -1, None, None, -11, b"")),
        (b"put a\rb\nc 0 0 0 1\r\n", Put("a\rb\nc", 0, 0, None, None, 1, b"")),
        (b"put  0 0 0 1\r\n", Put("", 0, 0, None, None, 1, b"")),
        (b"get t g 0 -9223372036854775808 -1 1\r\n", Get("t", "g", 0, -(2**63), -1, 1)),
        (b"stats a b\r\n", None),
        (b"stats a 1 surplus\r\n", Stats("a", 1)),
        (b"version 1 surplus\r\n", Version(1)),
        (b"v\r\n", Version(2147483647)),
        (b"transaction null s RECOVER 1\r\n", TransactionCommand(None, "s", TransactionVerb.RECOVER, None, None, 1)),
        (
            b"transaction XID:1:67:62:7 s BEGIN 3 7 1\r\n",
            TransactionCommand(parse_key("XID:1:67:62:7"), "s", TransactionVerb.BEGIN, 3, "7", 1),
        ),
    ],
)
def test_line_forms(wire: bytes, request_: Request | None) -> None:
    if request_ is None:
        assert_refused(RequestDecoder(), wire, "is not an int32")
    else:
        assert RequestDecoder().receive_data(wire) == [request_]


@pytest.mark.scenario("T09")
def test_an_incomplete_body_takes_nothing() -> None:
    decoder = RequestDecoder()
    assert decoder.receive_data(b"put t 0 5 0 11\r\nhell") == []
    assert decoder.buffered_bytes == 4
    assert decoder.receive_data(b"") == []
    assert decoder.receive_data(b"over") == [Put("t", 0, 0, None, None, 11, b"hello")]
    assert decoder.buffered_bytes == len(b"ver")


@pytest.mark.parametrize("length", [1, 7, 8])
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_line_may_be_as_long_as_its_bound(length: int, step: int) -> None:
    decoder = RequestDecoder(Limits(line_bytes_max=8))
    wire = (b"q" * length + b"\r\n") * 3
    decoded: list[Request | Dropped] = []
    for start in range(0, len(wire), step):
        decoded += decoder.receive_data(wire[start : start + step])
        assert decoder.buffered_bytes <= 9
    assert len(decoded) == 3


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize("end", [b"\r\n", b"", b"\r"])
def test_a_line_may_not_be_longer_than_its_bound(step: int, end: bytes) -> None:
    decoder = RequestDecoder(Limits(line_bytes_max=8))
    wire = b"q" * 10 + end

    def feed() -> None:
        for start in range(0, len(wire), step):
            decoder.receive_data(wire[start : start + step])

    with pytest.raises(RemoteProtocolError, match="line_bytes_max 8"):
        feed()
    assert decoder.buffered_bytes == 0


def test_a_body_may_be_as_long_as_its_bound() -> None:
    decoder = ResponseDecoder(Limits(body_bytes_max=8))
    assert decoder.receive_data(b"value 8 1\r\n12345678result 200 0 2\r\n") == [
        Value(b"12345678", 1),
        Result(200, b"", 2),
    ]
    assert_refused(decoder, b"value 9 1\r\n", "body_bytes_max 8")


@pytest.mark.parametrize("step", [1, 3, 8, 100])
def test_a_request_body_beyond_its_bound_is_passed_over(step: int) -> None:
    decoder = RequestDecoder(Limits(body_bytes_max=8))
    wire = b"put t 0 9 0 1\r\n" + b"version 1" + b"version 2\r\nput t 0 8 0 3\r\n" + b"x" * 8
    decoded: list[Request | Dropped] = []
    for start in range(0, len(wire), step):
        decoded += decoder.receive_data(wire[start : start + step])
        assert decoder.body_bytes_held <= 8
    text = "a body of 9 bytes is longer than body_bytes_max 8: send less at once"
    assert decoded == [Dropped(1, Status.BAD_REQUEST, text), Version(2), Put("t", 0, 0, None, None, 3, b"x" * 8)]
    assert decoder.is_between_commands


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_body_that_is_given_up_is_let_go_and_passed_over(step: int) -> None:
    decoder = RequestDecoder()
    assert decoder.receive_data(b"version 1\r\nput t 0 20 0 2\r\nversion 3\r\n") == [Version(1)]
    assert decoder.body_bytes_held == 11
    assert decoder.drop_body("too busy") == Dropped(2, Status.UNAVAILABLE, "too busy")
    assert (decoder.body_bytes_held, decoder.buffered_bytes, decoder.is_between_commands) == (0, 0, False)
    rest = b"version 4version 5\r\n"
    decoded: list[Request | Dropped] = []
    for start in range(0, len(rest), step):
        decoded += decoder.receive_data(rest[start : start + step])
    assert decoded == [Version(5)]


@pytest.mark.parametrize("bounds", [{"line_bytes_max": 0}, {"body_bytes_max": -1}])
def test_limits_that_bound_nothing_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="bounds nothing"):
        Limits(**bounds)


@pytest.mark.timeout(30)  # a quarter of a second if every byte is moved a bounded number of times, hours otherwise
def test_a_large_body_in_small_pieces_is_cheap() -> None:
    body = bytes(range(256)) * 65536
    decoder = ResponseDecoder()
    decoder.receive_data(b"value %d 1\r\n" % len(body))
    pieces = [body[start : start + 64] for start in range(0, len(body), 64)]
    decoded = [value for piece in pieces for value in decoder.receive_data(piece)]
    assert decoded == [Value(body, 1)]


def test_a_line_is_parsed_once_however_its_body_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    put = request_lines.PARSERS[b"put"]

    def counting_put(tokens: list[bytes]) -> tuple[Request, int]:
        parsed.append(tokens)
        return put(tokens)

    monkeypatch.setattr(request_lines, "PARSERS", {b"put": counting_put})
    decoder = RequestDecoder()
    for byte in b"put t 0 100 0 1\r\n" + b"x" * 100:
        decoder.receive_data(bytes([byte]))
    assert len(parsed) == 1


def test_a_finished_chunk_is_let_go() -> None:
    decoder = RequestDecoder()
    decoder.receive_data(b"put t 0 100000 0 1\r\n" + b"x" * 100_000 + b"version")
    assert decoder.buffered_bytes == len(b"version")


def test_receive_buffer_splits_a_crlf() -> None:
    buffer = ReceiveBuffer()
    buffer.hold(b"quit\r")
    assert buffer.maybe_line_with(b"", 8) is None
    assert buffer.maybe_line_with(b"\nrest", 8) == (b"quit", 1)
    assert len(buffer) == 0
