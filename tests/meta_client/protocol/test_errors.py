"""From a result to the error that says what to do."""

import pytest

from meta_client.protocol.errors import (
    BadRequest,
    Forbidden,
    InternalError,
    Moved,
    NotAuthenticated,
    NotAuthorised,
    NotFound,
    QuotaExceeded,
    RemoteError,
    RemoteProtocolError,
    StaleOwner,
    Unavailable,
    XaError,
    raise_for,
)
from meta_client.protocol.responses import Result
from meta_client.protocol.status import Status
from meta_client.protocol.xa import XaCode, XaFailure, format_xa_failure, parse_xa_failure


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, NotAuthenticated),
        (405, NotAuthorised),
        (429, QuotaExceeded),
        (403, Forbidden),
        (404, NotFound),
        (500, InternalError),
        (503, Unavailable),
        (504, RemoteError),
        (418, RemoteError),
        (-1, RemoteError),
    ],
)
def test_status_to_class(status: int, kind: type[RemoteError]) -> None:
    with pytest.raises(RemoteError) as caught:
        raise_for(Result(status, b"no\r\nway", 1), "get orders/0-3 from meta://b:8123")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.text) == (status, "no\r\nway")
    assert str(caught.value) == f"get orders/0-3 from meta://b:8123: status {status}: no  way"


def test_success_raises_nothing() -> None:
    raise_for(Result(200, b"", 1), "put")
    assert Result(200, b"", 1).is_success
    assert not Result(404, b"", 1).is_success


def test_stale_owner() -> None:
    with pytest.raises(StaleOwner) as caught:
        raise_for(Result(409, b"13 is the epoch of who owns it", 7), "fetch")
    assert caught.value.epoch == 13
    for message in (b"", b"somebody else", b" 13", b"9223372036854775808 is"):
        with pytest.raises(RemoteProtocolError, match="a 409 must name an epoch"):
            raise_for(Result(409, message, 7), "fetch")


def test_moved() -> None:
    with pytest.raises(Moved) as caught:
        raise_for(Result(301, b"1044", 7), "get")
    assert (caught.value.offset, caught.value.is_filtered) == (1044, False)
    with pytest.raises(Moved) as caught:
        raise_for(Result(301, b"1044 filtered", 7), "fetch")
    assert (caught.value.offset, caught.value.is_filtered) == (1044, True)
    for message in (b"", b"there", b" 1", b"9223372036854775808", b" filtered", b"1 filtered filtered", b"1 elsewhere"):
        with pytest.raises(RemoteProtocolError, match="a 301 must name an offset"):
            raise_for(Result(301, message, 7), "get")


def test_an_xa_failure() -> None:
    message = b"XAException:code=-4,msg=XA transaction 'TX' has not been started."
    with pytest.raises(XaError) as caught:
        raise_for(Result(500, message, 1), "commit")
    assert caught.value.code == XaCode.XAER_NOTA
    assert caught.value.reason == "XA transaction 'TX' has not been started."
    with pytest.raises(NotFound):  # the form counts in a 500 alone
        raise_for(Result(404, message, 1), "commit")


def test_a_text_of_strangers_makes_one_short_line() -> None:
    with pytest.raises(InternalError) as caught:
        raise_for(Result(500, b"\x1b[2J\xff\x00\n" * 100_000, 1), "put")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1100
    with pytest.raises(NotFound, match="the broker gave no reason"):
        raise_for(Result(404, b"", 1), "get")


@pytest.mark.parametrize("code", [*XaCode, 42])
def test_xa_text_both_ways(code: int) -> None:
    assert format_xa_failure(code, "why not") == f"XAException:code={int(code)},msg=why not"
    assert parse_xa_failure(format_xa_failure(code, "why not")) == XaFailure(int(code), "why not")
    assert parse_xa_failure(format_xa_failure(code, "why\r\nnot")) == XaFailure(int(code), "why not")


@pytest.mark.parametrize("text", ["", "XAException:", "code=1,msg=x", "XAException:code=x,msg=y", "XAException:code=1"])
def test_no_xa_text(text: str) -> None:
    assert parse_xa_failure(text) is None


def test_xa_codes() -> None:
    stated = "0 3 6 7 8 104 106 -3 -4 -5 -6 -7 -8"
    assert list(map(int, XaCode)) == list(map(int, stated.split()))
    assert list(map(int, Status)) == [200, 301, 400, 401, 403, 404, 405, 409, 416, 429, 500, 503, 504]
