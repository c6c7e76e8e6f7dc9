"""Commands to bytes. Bodies are passed through without a copy: write the head, then the body.

Raises LocalProtocolError for a value that has no form on the wire. No value of a caller can start another command:
tokens contain no white space and no control characters.
"""

import base64
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import assert_never
from urllib.parse import quote

from journal.records.xid import BranchKey, LocalKey
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from meta_client.protocol.limits import AUTH_BYTES_MAX, FIND_KEY_BYTES_MAX, FIND_MATCHES_MAX, LINE_BYTES_MAX
from meta_client.protocol.requests import (
    TEXTS_OF_BRANCH,
    Authenticate,
    Body,
    BranchCommand,
    BranchVerb,
    Count,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Replicate,
    Request,
    ResetGroup,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    TransactionCommand,
    Version,
)
from meta_client.protocol.responses import READ_FROM, Behind

JOIN_BYTES_MAX = 64 * 1024  # below, joining buffers is cheaper than a system call

_BLANK_OR_CONTROL = re.compile(r"[\x00-\x20\x7f]")


def encode_flight(requests: Iterable[Request]) -> list[Body]:
    """Encode requests that are sent together: one piece, or several to avoid copying large bodies."""
    pieces: list[Body] = []
    for request in requests:
        pieces += encode_request(request)
    if sum(map(len, pieces)) <= JOIN_BYTES_MAX:
        return [b"".join(pieces)]
    return [piece for piece in pieces if piece]


def encode_request(request: Request) -> tuple[bytes, Body]:
    """The line (with its CRLF) and the body (empty for most) of a request, always in its newest form."""
    body: Body = b""
    match request:  # tried in this order: the most frequent first
        case MultiPut():
            line, body = _mput(request), request.body
        case Put():
            line, body = _put(request), request.body
        case TransactionCommand():
            line = _transaction(request)
        case Get(topic, group, partition, offset, bytes_max, opaque):
            numbers = b"%d %d %d %d" % (_int32(partition), _int64(offset), _int32(bytes_max), _int32(opaque))
            line = b"get %b %b %b\r\n" % (_token(topic), _token(group), numbers)
        case Fetch():
            line = _fetch(request)
        case OffsetQuery(topic, group, partition, offset, opaque):
            numbers = b"%d %d %d" % (_int32(partition), _int64(offset), _int32(opaque))
            line = b"offset %b %b %b\r\n" % (_token(topic), _token(group), numbers)
        case Offsets(topic, partition, time_ms, opaque):
            line = b"offsets %b %d %d %d\r\n" % (_token(topic), _int32(partition), _int64(time_ms), _int32(opaque))
        case Count(topic, partition, offset, opaque):
            line = b"count %b %d %d %d\r\n" % (_token(topic), _int32(partition), _int64(offset), _int32(opaque))
        case ResetGroup(topic, group, partition, before, after, opaque):
            numbers = b"%d %d %d %d" % (_int32(partition), _int64(before), _int64(after), _int32(opaque))
            line = b"reset %b %b %b\r\n" % (_token(topic), _token(group), numbers)
        case Find():
            line = _find(request)
        case TakeCheckpoint(opaque):
            line = b"checkpoint %d\r\n" % _int32(opaque)
        case Replicate(opaque):
            line = b"replicate %d\r\n" % _int32(opaque)
        case Authenticate(mechanism, message, opaque):
            if len(message) > AUTH_BYTES_MAX:
                raise LocalProtocolError(f"a message of auth has {AUTH_BYTES_MAX} bytes at most, not {len(message)}")
            line = b"auth %b %b %d\r\n" % (_token(mechanism), base64.b64encode(message), _int32(opaque))
        case Stats(item, opaque):
            # Without an item write two spaces, as the ancestor does.
            line = b"stats %b %d\r\n" % (_token(item) if item else b"", _int32(opaque))
        case Version(opaque):
            line = b"version %d\r\n" % _int32(opaque)
        case Quit():
            line = b"quit\r\n"
        case TopicCommand():
            line = _topic_command(request)
        case BranchCommand():
            line = _branch_command(request)
        case Sync():
            line, body = _sync(request), request.body
        case _:
            assert_never(request)
    if len(line) - 2 > LINE_BYTES_MAX:
        raise LocalProtocolError(f"a line of {len(line) - 2} bytes is longer than {LINE_BYTES_MAX}: shorten the names")
    return line, body


def encode_result(status: int, message: bytes, opaque: int) -> bytes:
    """Encode a whole short result in one piece. The caller checks the int32s."""
    return b"result %d %d %d\r\n%b" % (status, len(message), opaque, message)


def value_line(body_bytes: int, opaque: int) -> bytes:
    """Encode the line of a value whose body is sent separately, like slices of a mapped file."""
    return b"value %d %d\r\n" % (_int32(body_bytes), _int32(opaque))


def data_line(body_bytes: int, log_end: int, read_from: str, opaque: int, behind: Behind | None = None) -> bytes:
    """Encode the line of a data response whose body is sent separately. *behind*: set by a slave."""
    if log_end < 0 or READ_FROM.fullmatch(read_from) is None:
        raise LocalProtocolError(f"log end {log_end} must not be negative, read_from {read_from!r} be m or s<number>")
    if behind is not None:
        if min(behind) < 0:
            raise LocalProtocolError(f"{behind.bytes} bytes and {behind.silent_ms} ms behind must not be negative")
        read_from += f" {_int64(behind.bytes)} {_int64(behind.silent_ms)}"
    return b"data %d %d %b %d\r\n" % (_int32(body_bytes), _int64(log_end), read_from.encode(), _int32(opaque))


def _fetch(fetch: Fetch) -> bytes:
    if fetch.epoch is not None and fetch.epoch < 0:
        raise LocalProtocolError(f"epoch {fetch.epoch} must not be negative")
    epoch = b"" if fetch.epoch is None else b" %d" % _int64(fetch.epoch)
    return b"fetch %b %b %d %d %d %d %d%b %d\r\n" % (
        _token(fetch.topic),
        _token(fetch.group),
        _int32(fetch.partition),
        _int64(fetch.offset),
        _int32(fetch.bytes_max),
        _int32(fetch.bytes_min),
        _int32(fetch.wait_ms),
        epoch,
        _int32(fetch.opaque),
    )


def _find(find: Find) -> bytes:
    if not 0 < find.matches_max <= FIND_MATCHES_MAX:
        raise LocalProtocolError(f"a find names 1 to {FIND_MATCHES_MAX} messages, not {find.matches_max}")
    if isinstance(find.wanted, int):
        wanted = b"id=%d" % _int64(find.wanted)
    elif len(find.wanted) <= FIND_KEY_BYTES_MAX:
        wanted = b"key=" + find.wanted.hex().encode()
    else:
        raise LocalProtocolError(f"a key of {len(find.wanted)} bytes can't be searched for, {FIND_KEY_BYTES_MAX} can")
    return b"find %b %d %d %d %b %d\r\n" % (
        _token(find.topic),
        _int32(find.partition),
        _int64(find.offset),
        find.matches_max,
        wanted,
        _int32(find.opaque),
    )


def _put(put: Put) -> bytes:
    return b"put %b %d %d %d %d%b %d\r\n" % (
        _token(put.topic),
        _int32(put.partition),
        _length(put.body),
        _int32(put.flag),
        -1 if put.checksum is None else _int32(put.checksum),
        b"" if put.key is None else b" " + _key(put.key),
        _int32(put.opaque),
    )


def _mput(mput: MultiPut) -> bytes:
    sequence = mput.sequence
    return b"mput %b %d %d %d %d%b%b %d\r\n" % (
        _token(mput.topic),
        _int32(mput.partition),
        _int32(mput.count),
        _length(mput.body),
        _int32(mput.checksum),
        b"" if sequence is None else b" %b:%d" % (_token(sequence.producer), _int64(sequence.number)),
        b"" if mput.key is None else b" " + _key(mput.key),
        _int32(mput.opaque),
    )


def _sync(sync: Sync) -> bytes:
    return b"sync %b %d %d %d %d %d %d\r\n" % (
        _token(sync.topic),
        _int32(sync.partition),
        _length(sync.body),
        _int32(sync.flag),
        _int64(sync.message_id),
        -1 if sync.checksum is None else _int32(sync.checksum),
        _int32(sync.opaque),
    )


def _topic_command(command: TopicCommand) -> bytes:
    words = [b"topic", command.verb.encode(), _token(command.topic)]
    for key, value in command.settings:
        if "=" in key:
            raise LocalProtocolError(f"{key!r} is no key of a setting: an equals sign would end it")
        words.append(_word(f"{key}={value}"))
    words.append(b"%d\r\n" % _int32(command.opaque))
    return b" ".join(words)


def _branch_command(command: BranchCommand) -> bytes:
    if (command.key is None) is not (command.verb is BranchVerb.LEDGER):
        raise LocalProtocolError(
            f"a branch command {command.verb} about {command.key}: only a ledger is about no branch"
        )
    words = [b"branch", command.verb.encode()]
    if command.key is not None:
        words.append(_key(command.key))
    # All other characters are written as %XX: free texts contain spaces.
    said = (command.who, command.why, command.evidence)[: TEXTS_OF_BRANCH[command.verb]]
    words += [_word(quote(_utf8(text), safe="")) for text in said]
    return b" ".join([*words, b"%d\r\n" % _int32(command.opaque)])


def _transaction(request: TransactionCommand) -> bytes:
    timeout, qualifier = request.timeout_seconds, request.qualifier
    return b"transaction %b %b %b%b%b %d\r\n" % (
        b"null" if request.key is None else _key(request.key),
        _token(request.session_id),
        _token(request.verb),
        b" %d" % _int32(timeout) if timeout is not None and timeout > 0 else b"",
        b"" if qualifier is None else _qualifier(qualifier, timeout is not None and timeout > 0),
        _int32(request.opaque),
    )


def _word(text: str) -> bytes:
    if not text or _BLANK_OR_CONTROL.search(text):
        raise LocalProtocolError(f"{text!r} is empty or holds white space or control characters")
    return _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{text!r} has no UTF-8 form: {error.reason}") from error


# A client's lines repeat few topics, groups and sessions; keys change.
_token = lru_cache(maxsize=1024)(_word)


@lru_cache(maxsize=1024)
def _key(key: BranchKey) -> bytes:
    if isinstance(key, LocalKey):
        return _word(str(key))
    return _utf8(str(key))  # control characters, too: another client may have sent them, and its branch must end


@lru_cache(maxsize=1024)
def _qualifier(qualifier: str, follows_timeout: bool) -> bytes:
    token = _word(qualifier)
    if token.isdigit() and not follows_timeout:
        # Six tokens with digits in the fifth are read as a timeout (spec 2.2).
        raise LocalProtocolError(f"qualifier {qualifier!r} would be read as a timeout: use one with a letter")
    return b" " + token


def _int32(number: int) -> int:
    if not INT32_MIN <= number <= INT32_MAX:
        raise LocalProtocolError(f"{number} is not an int32")
    return number


def _int64(number: int) -> int:
    if not INT64_MIN <= number <= INT64_MAX:
        raise LocalProtocolError(f"{number} is not an int64")
    return number


def _length(body: Body) -> int:
    if len(body) > INT32_MAX:
        raise LocalProtocolError(f"a body of {len(body)} bytes is longer than {INT32_MAX}")
    return len(body)
