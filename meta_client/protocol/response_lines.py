"""One line of a response to the command that it is (spec 1.4); the twin of request_lines.py."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from meta_client import core
from meta_client.protocol.integers import int32, int32_repeated, int64
from meta_client.protocol.request_lines import body_length
from meta_client.protocol.responses import READ_FROM, Behind, Data, Response, Result, Value


def parse_response_line(line: bytes) -> tuple[Response, int]:
    """The response that *line* begins, and how many body bytes belong to it. Raises ValueError."""
    tokens = line.rstrip(b" ").split(b" ")
    parser = PARSERS.get(tokens[0])
    if parser is None:
        raise ValueError("unknown response")
    return parser(tokens)


def plain_results() -> Callable[..., int] | None:
    """Return the native core's way to decode results (decoder.Plain); None without the core."""
    return None if core.core is None else partial(core.core.plain_results, Result)


def _result(tokens: list[bytes]) -> tuple[Response, int]:
    match tokens:
        case [_, status, length, opaque]:
            return Result(int32_repeated(status), b"", int32(opaque)), body_length(length)
    raise _wrong_count(4, tokens)


def _value(tokens: list[bytes]) -> tuple[Response, int]:
    match tokens:
        case [_, length, opaque]:
            return Value(b"", int32(opaque)), body_length(length)
    raise _wrong_count(3, tokens)


def _data(tokens: list[bytes]) -> tuple[Response, int]:
    behind = None
    if len(tokens) == 7:
        behind = Behind(int64(tokens[4]), int64(tokens.pop(5)))
        del tokens[4]
        if min(behind) < 0:
            raise ValueError(f"{behind.bytes} bytes and {behind.silent_ms} ms behind: neither can be negative")
    if len(tokens) != 5:
        raise _wrong_count(5, tokens)
    if (log_end := int64(tokens[2])) < 0:
        raise ValueError(f"log end {log_end} is negative")
    if READ_FROM.fullmatch(read_from := tokens[3].decode()) is None:
        raise ValueError("the replica to read from is neither m nor s with a number")
    return Data(b"", log_end, read_from, int32(tokens[4]), behind), body_length(tokens[1])


def _wrong_count(expected: int, tokens: list[bytes]) -> ValueError:
    return ValueError(f"{expected} tokens are expected, {len(tokens)} came")


PARSERS: Final[Mapping[bytes, Callable[[list[bytes]], tuple[Response, int]]]] = {
    b"result": _result,
    b"value": _value,
    b"data": _data,
}
