"""Messages as text: JSON objects for scripts, and templates of the user's. Pure."""

import base64
import datetime
import re
from collections.abc import Callable, Mapping
from typing import Final

from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.operations.text import printable

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(r"\\(.)|\{(\w*)\}|\{\{|\}\}|[^\\{}]+|.", re.DOTALL)

Render = Callable[[ReceivedMessage, int | None], bytes]  # of a message and its put time, if known


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


FIELDS: Final[Mapping[str, Render]] = {
    "topic": lambda message, time_ms: message.topic.encode(),
    "partition": lambda message, time_ms: _text(message.partition),
    "offset": lambda message, time_ms: _text(message.offset),
    "next": lambda message, time_ms: _text(message.next_offset),
    "id": lambda message, time_ms: _text(message.message_id),
    "time": lambda message, time_ms: _text(time_text(time_ms)),
    "attribute": lambda message, time_ms: _text(message.attribute),
    "payload": lambda message, time_ms: message.payload,
    "hex": lambda message, time_ms: message.payload.hex().encode(),
    "base64": lambda message, time_ms: base64.b64encode(message.payload),
    "bytes": lambda message, time_ms: _text(len(message.payload)),
}


def parse_template(template: str, *, for_terminal: bool = False) -> Render:
    """Parse a template with {names} of FIELDS, doubled braces for braces, and \\n, \\t, \\r, \\0. *for_terminal*:
    fields show control characters as escapes, apart from line ends and tabs. Raises ValueError."""
    pieces: list[Render] = []
    for match in _PIECE.finditer(template):
        escape, name = match.groups()
        if escape is not None:
            if escape not in _ESCAPES:
                raise ValueError(f"\\{escape} is none of {', '.join(chr(92) + it for it in _ESCAPES)}")
            pieces.append(_constant(_ESCAPES[escape]))
        elif name is not None:
            if name not in FIELDS:
                raise ValueError(f"{{{name}}} is none of {', '.join(f'{{{it}}}' for it in FIELDS)}")
            pieces.append(_harmless(FIELDS[name]) if for_terminal else FIELDS[name])
        elif match[0] in ("{{", "}}"):
            pieces.append(_constant(match[0][:1].encode()))
        elif match[0] in ("{", "}", "\\"):
            raise ValueError(f"{match[0]} stands alone: double it" + (", as \\\\" if match[0] == "\\" else ""))
        else:
            pieces.append(_constant(match[0].encode()))
    return lambda message, time_ms: b"".join([piece(message, time_ms) for piece in pieces])


def _constant(text: bytes) -> Render:
    return lambda message, time_ms: text


def _harmless(show: Render) -> Render:
    def shown(message: ReceivedMessage, time_ms: int | None) -> bytes:
        text = show(message, time_ms).decode(errors="backslashreplace")
        return "".join(letter if letter in "\n\t" else printable(letter) for letter in text).encode()

    return shown


def message_object(message: ReceivedMessage, time_ms: int | None) -> dict[str, object]:
    """Return a message for scripts; a payload that is not UTF-8 becomes base64. The time is None if unknown."""
    shown: dict[str, object] = {
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": message.offset,
        "message_id": message.message_id,
        "time": time_text(time_ms),
        "attribute": message.attribute,
    }
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    return shown


def time_text(time_ms: int | None) -> str | None:
    """Format a time for people and scripts: local time with its UTC offset."""
    if time_ms is None:
        return None
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).astimezone()
    return moment.isoformat(timespec="milliseconds")
