"""Refusal, before anything is sent, of values the wire cannot express."""

import pytest

from journal.records.xid import LocalKey, XaKey, Xid
from meta_client.protocol.encoder import JOIN_BYTES_MAX, data_line, encode_flight, encode_request, value_line
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.limits import AUTH_BYTES_MAX
from meta_client.protocol.requests import (
    Authenticate,
    BranchCommand,
    BranchVerb,
    Fetch,
    Get,
    Put,
    Request,
    Stats,
    Sync,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import Behind

BEGIN = TransactionVerb.BEGIN
KEY = XaKey(Xid.of("g", "b"), "q")


def test_bodies_are_handed_through_not_copied() -> None:
    body = b"x" * 1000
    assert encode_request(Put("t", 0, 0, None, None, 1, body))[1] is body
    assert encode_request(Sync("t", 0, 0, 1, None, 1, body))[1] is body


def test_what_leaves_together_is_one_piece_unless_it_is_large() -> None:
    small, large = Put("t", 0, 0, None, None, 1, b"x" * 1000), Put("t", 0, 0, None, None, 2, b"x" * JOIN_BYTES_MAX)
    begin = TransactionCommand(None, "s", BEGIN, None, None, 3)
    whole = b"".join(b"".join(encode_request(request)) for request in (begin, small))
    assert encode_flight([begin, small]) == [whole]
    pieces = encode_flight([begin, large, small])
    assert b"".join(pieces) == b"".join(b"".join(encode_request(request)) for request in (begin, large, small))
    assert any(piece is large.body for piece in pieces), "it is not copied"
    assert all(pieces)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\r\nquit", "a\n", "a\t", "\0", "\x7f", "\ud800"])
def test_a_name_can_not_start_another_command(name: str) -> None:
    commands: list[Request] = [
        Put(name, 0, 0, None, None, 1, b""),
        Sync(name, 0, 0, 1, None, 1, b""),
        Get(name, "g", 0, 0, 1, 1),
        Get("t", name, 0, 0, 1, 1),
        TransactionCommand(None, name, BEGIN, None, None, 1),
        TransactionCommand(None, "s", BEGIN, None, name, 1),
    ]
    if name:
        commands.append(Stats(name, 1))
    for command in commands:
        with pytest.raises(LocalProtocolError):
            encode_request(command)


def test_a_key_can_not_hide_control_characters() -> None:
    with pytest.raises(LocalProtocolError, match="control characters"):
        encode_request(Put("t", 0, 0, None, LocalKey("a\0b", 1), 1, b""))


@pytest.mark.parametrize(
    "command",
    [
        Put("t", 2**31, 0, None, None, 1, b""),
        Put("t", 0, -(2**31) - 1, None, None, 1, b""),
        Put("t", 0, 0, 2**31, None, 1, b""),
        Put("t", 0, 0, None, None, 2**31, b""),
        Sync("t", 0, 0, 2**63, None, 1, b""),
        Get("t", "g", 0, 2**63, 1, 1),
        Get("t", "g", 0, 0, 2**31, 1),
        Version(2**31),
        TransactionCommand(None, "s", BEGIN, 2**31, None, 1),
    ],
)
def test_numbers_must_fit(command: Request) -> None:
    with pytest.raises(LocalProtocolError, match="is not an int"):
        encode_request(command)


def test_response_numbers_must_fit() -> None:
    with pytest.raises(LocalProtocolError):
        value_line(2**31, 1)
    for log_end, read_from in ((-1, "m"), (0, "x")):
        with pytest.raises(LocalProtocolError, match="must not be negative, read_from"):
            data_line(0, log_end, read_from, 1)
    for behind in (Behind(-1, 0), Behind(0, -1)):
        with pytest.raises(LocalProtocolError, match="behind must not be negative"):
            data_line(0, 0, "s1", 1, behind)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (Fetch("t", "g", 0, 0, 1, 1, 1, 1, -1), "epoch -1 must not be negative"),
        (TopicCommand(TopicVerb.ALTER, "t", (("a=b", "c"),), 1), "'a=b' is no key of a setting"),
        (BranchCommand(BranchVerb.LEDGER, KEY, "", "", 1), "only a ledger is about no branch"),
        (BranchCommand(BranchVerb.SHOW, None, "", "", 1), "only a ledger is about no branch"),
        (BranchCommand(BranchVerb.COMMIT, KEY, "ann", "\ud800", 1), "UTF-8"),
        (BranchCommand(BranchVerb.COMMIT, KEY, "ann", "", 1), "is empty"),
        (Authenticate("SCRAM-SHA-256", bytes(AUTH_BYTES_MAX + 1), 1), "a message of auth has"),
    ],
)
def test_what_a_newer_verb_does_not_take(command: Request, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        encode_request(command)


def test_a_qualifier_that_reads_as_a_timeout() -> None:
    assert encode_request(TransactionCommand(None, "s", BEGIN, 3, "42", 1))[0] == b"transaction null s BEGIN 3 42 1\r\n"
    for timeout in (None, 0, -1):
        with pytest.raises(LocalProtocolError, match="'42' would be read as a timeout"):
            encode_request(TransactionCommand(None, "s", BEGIN, timeout, "42", 1))


@pytest.mark.parametrize("timeout", [None, 0, -1])
def test_no_timeout_is_not_written(timeout: int | None) -> None:
    assert (
        encode_request(TransactionCommand(None, "s", BEGIN, timeout, "uq", 1))[0]
        == b"transaction null s BEGIN uq 1\r\n"
    )


def test_a_line_may_be_as_long_as_a_peer_reads() -> None:
    longest = 8192 - len("stats  1")
    assert len(encode_request(Stats("x" * longest, 1))[0]) == 8194
    with pytest.raises(LocalProtocolError, match="8193 bytes is longer than 8192"):
        encode_request(Stats("x" * (longest + 1), 1))
