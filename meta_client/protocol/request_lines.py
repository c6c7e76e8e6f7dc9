"""Parses one request line into a command (spec 1.1, 1.3 and 2.2).

A parser takes the tokens of a line and returns the command, its body still empty, and the number of body bytes that
follow. It raises ValueError for a line that can never be a command. `PARSERS` is the whole vocabulary: an extension
adds an entry.
"""

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final
from urllib.parse import unquote

from journal.records.producer_state import BatchSequence
from journal.records.record import PRODUCER_BYTES_MAX
from journal.records.xid import XaKey, parse_key
from meta_client import core
from meta_client.protocol.integers import int32, int32_repeated, int64
from meta_client.protocol.limits import AUTH_BYTES_MAX, BATCH_MESSAGES_MAX, FIND_KEY_BYTES_MAX, FIND_MATCHES_MAX
from meta_client.protocol.requests import (
    OPAQUE_ABSENT,
    TEXTS_OF_BRANCH,
    Authenticate,
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
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)

Parser = Callable[[list[bytes]], tuple[Request, int]]

_VERBS: Final = {verb.value.encode(): verb for verb in TransactionVerb}

# A branch sends its key with every put. Keys have at most 1 KiB, so this cache at most some megabytes.
_branch_key = lru_cache(maxsize=4096)(parse_key)


def parse_request_line(line: bytes) -> tuple[Request, int]:
    """Parse *line*; return the request and its number of body bytes. Raises ValueError."""
    # Tokens are positional: two spaces make an empty one, except at the end.
    tokens = line.rstrip(b" ").split(b" ")
    parser = PARSERS.get(tokens[0])
    if parser is None:
        parser = _parser_by_first_character(tokens[0])
    return parser(tokens)


def plain_requests() -> Callable[..., int] | None:
    """Return the native core's way to decode the requests of branches (decoder.Plain); None without the core."""
    if core.core is None:
        return None
    return partial(core.core.branch_requests, Put, TransactionCommand, _branch_key, _VERBS)


@lru_cache(maxsize=4096)  # as int32_repeated
def body_length(token: bytes) -> int:
    """Parse the number of body bytes. Raises ValueError if negative."""
    if (length := int32(token)) < 0:
        raise ValueError(f"body length {length} is negative")
    return length


def _put(tokens: list[bytes]) -> tuple[Request, int]:
    checksum = key = None
    count = len(tokens)
    if count == 7:
        # Old and new lines can have seven tokens: a checksum begins with a digit or a minus, a key never does.
        if tokens[5][:1] in b"0123456789-":
            checksum = int32(tokens[5])
        else:
            key = _branch_key(tokens[5].decode())
    elif count == 8:
        checksum, key = int32(tokens[5]), _branch_key(tokens[6].decode())
    elif count != 6:  # six: from before checksums
        raise ValueError(f"put has 6 to 8 tokens, not {count}")
    if checksum == -1:
        checksum = None
    topic, partition, flag = tokens[1].decode(), int32_repeated(tokens[2]), int32_repeated(tokens[4])
    return Put(topic, partition, flag, checksum, key, int32(tokens[-1]), b""), body_length(tokens[3])


def _mput(tokens: list[bytes]) -> tuple[Request, int]:
    sequence = key = None
    match len(tokens):
        case 7:
            pass
        case 8 if tokens[6].count(b":") == 1:  # a transaction key has more
            sequence = _sequence(tokens[6])
        case 8:
            key = _branch_key(tokens[6].decode())
        case 9:
            sequence, key = _sequence(tokens[6]), _branch_key(tokens[7].decode())
        case count:
            raise ValueError(f"mput has 7 to 9 tokens, not {count}")
    if not 0 < (messages := int32_repeated(tokens[3])) <= BATCH_MESSAGES_MAX:
        raise ValueError(f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, not {messages}")
    topic, partition, checksum = tokens[1].decode(), int32_repeated(tokens[2]), int32(tokens[5])
    length = body_length(tokens[4])
    return MultiPut(topic, partition, messages, checksum, sequence, key, int32(tokens[-1]), b""), length


def _sequence(token: bytes) -> BatchSequence:
    producer, _, number = token.partition(b":")
    if not 0 < len(producer) <= PRODUCER_BYTES_MAX:
        raise ValueError(f"a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes, not {len(producer)}")
    if (parsed := int64(number)) < 0:
        raise ValueError(f"batch number {parsed} is negative")
    return BatchSequence(producer.decode(), parsed)


def _sync(tokens: list[bytes]) -> tuple[Request, int]:
    match len(tokens):
        case 7:
            checksum = None
        case 8:
            checksum = int32(tokens[6])
        case count:
            raise ValueError(f"sync has 7 or 8 tokens, not {count}")
    if checksum == -1:
        checksum = None
    length = body_length(tokens[3])
    topic, partition, flag, message_id = tokens[1].decode(), int32(tokens[2]), int32(tokens[4]), int64(tokens[5])
    return Sync(topic, partition, flag, message_id, checksum, int32(tokens[-1]), b""), length


def _get(tokens: list[bytes]) -> tuple[Request, int]:
    _require(tokens, 7)  # more are ignored
    topic, group, partition, offset = tokens[1].decode(), tokens[2].decode(), int32(tokens[3]), int64(tokens[4])
    return Get(topic, group, partition, offset, int32(tokens[5]), int32(tokens[6])), 0


def _fetch(tokens: list[bytes]) -> tuple[Request, int]:
    if len(tokens) not in (9, 10):
        raise ValueError(f"fetch has 9 or 10 tokens, not {len(tokens)}")
    topic, group, partition, offset = tokens[1].decode(), tokens[2].decode(), int32(tokens[3]), int64(tokens[4])
    bytes_max, bytes_min, wait_ms = int32(tokens[5]), int32(tokens[6]), int32(tokens[7])
    if (epoch := int64(tokens[8]) if len(tokens) == 10 else None) is not None and epoch < 0:
        raise ValueError(f"epoch {epoch} is negative")
    return Fetch(topic, group, partition, offset, bytes_max, bytes_min, wait_ms, int32(tokens[-1]), epoch), 0


def _offset(tokens: list[bytes]) -> tuple[Request, int]:
    _require(tokens, 6)
    topic, group, partition, offset = tokens[1].decode(), tokens[2].decode(), int32(tokens[3]), int64(tokens[4])
    return OffsetQuery(topic, group, partition, offset, int32(tokens[5])), 0


def _fields(kind: Callable[..., Request], *fields: Callable[[bytes], object]) -> Parser:
    """Return the parser of a line that has these fields behind its verb, and no others."""

    def parse(tokens: list[bytes]) -> tuple[Request, int]:
        if len(tokens) != 1 + len(fields):
            raise ValueError(f"{tokens[0].decode()} has {1 + len(fields)} tokens, not {len(tokens)}")
        return kind(*[field(token) for field, token in zip(fields, tokens[1:], strict=True)]), 0

    return parse


def _matches_max(token: bytes) -> int:
    if not 0 < (matches_max := int32(token)) <= FIND_MATCHES_MAX:
        raise ValueError(f"a find names 1 to {FIND_MATCHES_MAX} messages, not {matches_max}")
    return matches_max


def _wanted(token: bytes) -> bytes | int:
    kind, _, value = token.partition(b"=")
    match kind:
        case b"id":
            return int64(value)
        case b"key":
            # Accept only the encoder's spelling: bytes.fromhex also accepts white space and capitals.
            if (key := bytes.fromhex(value.decode())).hex().encode() == value and len(key) <= FIND_KEY_BYTES_MAX:
                return key
    raise ValueError(f"{token[:40]!r} is neither id=<number> nor key=<hexadecimal>")


def _auth_message(token: bytes) -> bytes:
    message = base64.b64decode(token, validate=True)  # binascii.Error is a ValueError
    # Accept only the encoder's spelling, as of find's keys.
    if base64.b64encode(message) != token or len(message) > AUTH_BYTES_MAX:
        raise ValueError(f"a message of auth is base64 of {AUTH_BYTES_MAX} bytes at most")
    return message


def _stats(tokens: list[bytes]) -> tuple[Request, int]:
    item = tokens[1].decode() if len(tokens) > 1 else ""
    return Stats(item, int32(tokens[2]) if len(tokens) > 2 else OPAQUE_ABSENT), 0


def _version(tokens: list[bytes]) -> tuple[Request, int]:
    return Version(int32(tokens[1]) if len(tokens) > 1 else OPAQUE_ABSENT), 0


def _quit(tokens: list[bytes]) -> tuple[Request, int]:
    return Quit(), 0


def _transaction(tokens: list[bytes]) -> tuple[Request, int]:
    timeout = qualifier = None
    match len(tokens):
        case 5:
            pass
        case 6 if tokens[4].isdigit():
            timeout = tokens[4]
        case 6:
            qualifier = tokens[4]
        case 7:
            timeout, qualifier = tokens[4:6]
        case count:
            raise ValueError(f"transaction has 5 to 7 tokens, not {count}")
    if qualifier == b"":
        raise ValueError("the unique qualifier is empty")
    if (verb := _VERBS.get(tokens[3])) is None:
        raise ValueError(f"{tokens[3].decode()!r} is not a valid TransactionVerb")
    key = None if tokens[1] == b"null" else _branch_key(tokens[1].decode())
    seconds = 0 if timeout is None else int32(timeout)
    return TransactionCommand(
        key,
        tokens[2].decode(),
        verb,
        seconds if seconds > 0 else None,
        None if qualifier is None else qualifier.decode(),
        int32(tokens[-1]),
    ), 0


def _topic(tokens: list[bytes]) -> tuple[Request, int]:
    _require(tokens, 4)
    settings = []
    for token in tokens[3:-1]:
        key, equals, value = token.decode().partition("=")
        if not equals:
            raise ValueError(f"a setting is key=value, not {key!r}")
        settings.append((key, value))
    return TopicCommand(TopicVerb(tokens[1].decode()), tokens[2].decode(), tuple(settings), int32(tokens[-1])), 0


def _branch(tokens: list[bytes]) -> tuple[Request, int]:
    verb = BranchVerb(tokens[1].decode()) if len(tokens) > 1 else BranchVerb.SHOW
    expected = 3 if verb is BranchVerb.LEDGER else 4 + TEXTS_OF_BRANCH[verb]
    if len(tokens) != expected:
        raise ValueError(f"branch {verb} has {expected} tokens, not {len(tokens)}")
    if verb is BranchVerb.LEDGER:
        return BranchCommand(verb, None, "", "", int32(tokens[-1])), 0
    key = parse_key(tokens[2].decode())
    if not isinstance(key, XaKey):
        raise ValueError(f"{key} is no XA branch")
    said = [unquote(token.decode(), errors="strict") for token in tokens[3:-1]]
    who, why, evidence = (*said, "", "", "")[:3]
    return BranchCommand(verb, key, who, why, int32(tokens[-1]), evidence), 0


def _require(tokens: list[bytes], count: int) -> None:
    if len(tokens) < count:
        raise ValueError(f"{count} tokens are needed, {len(tokens)} came")


def _parser_by_first_character(word: bytes) -> Parser:
    """Return the parser of an unknown word: like the ancestor, decide two verbs by the first character."""
    if word.startswith(b"v") and word != b"value":
        return _version
    if word.startswith(b"q"):
        return _quit
    raise ValueError("unknown command")


PARSERS: Final[Mapping[bytes, Parser]] = {
    b"put": _put,
    b"mput": _mput,
    b"get": _get,
    b"fetch": _fetch,
    b"offset": _offset,
    b"offsets": _fields(Offsets, bytes.decode, int32, int64, int32),
    b"find": _fields(Find, bytes.decode, int32, int64, _matches_max, _wanted, int32),
    b"count": _fields(Count, bytes.decode, int32, int64, int32),
    b"reset": _fields(ResetGroup, bytes.decode, bytes.decode, int32, int64, int64, int32),
    b"checkpoint": _fields(TakeCheckpoint, int32),
    b"transaction": _transaction,
    b"version": _version,
    b"stats": _stats,
    b"sync": _sync,
    b"topic": _topic,
    b"branch": _branch,
    b"quit": _quit,
    b"replicate": _fields(Replicate, int32),
    b"auth": _fields(Authenticate, bytes.decode, _auth_message, int32),
}
