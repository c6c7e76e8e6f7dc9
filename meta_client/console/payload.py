"""A payload as text, JSON or hex, of bounded size. Pure; bytes from anybody."""

import json
from typing import Final, NamedTuple

SHOWN_BYTES: Final = 64 * 1024
PREVIEW_BYTES: Final = 160
HEX_BYTES: Final = 16 * 1024  # a byte takes four characters
JSON_BYTES: Final = 256 * 1024
COLUMNS: Final = 16
FORMS: Final = ("auto", "text", "json", "hex")


class ShownPayload(NamedTuple):
    """A payload in one *form*. *hidden*: bytes behind what is shown. *note*: why it is not in the form asked for."""

    form: str
    text: str
    hidden: int = 0
    note: str = ""


def shown(payload: bytes, form: str = "auto") -> ShownPayload:
    """Return *payload* in *form*; auto: JSON if it is some, else text if it is UTF-8, else hex."""
    match form:
        case "hex":
            return _hex(payload)
        case "text":
            return _text(payload)
        case "json":
            return _json(payload) or _text(payload)._replace(note="it is no JSON, or too large to be laid out")
    if payload[:1] in (b"{", b"[") and (found := _json(payload)) is not None:
        return found
    return _text(payload) if _is_text(payload) else _hex(payload)


def preview(payload: bytes) -> str:
    """Return the beginning of *payload* in one line."""
    head = payload[:PREVIEW_BYTES]
    if not _is_text(head):
        head = head[: PREVIEW_BYTES // 4]
        return head.hex(" ") + " ..." * (len(payload) > len(head))
    text = "".join(letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in head.decode(errors="replace"))
    return text + " ..." * (len(payload) > PREVIEW_BYTES)


def _is_text(payload: bytes) -> bool:
    """Return True for UTF-8 that may end in the middle of a letter, without control characters but those of lines."""
    head = payload[:SHOWN_BYTES]
    for cut in range(4):
        try:
            text = head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        return all(letter.isprintable() or letter in "\t\r\n" for letter in text)
    return False


def _text(payload: bytes) -> ShownPayload:
    text = payload[:SHOWN_BYTES].decode(errors="replace")
    return ShownPayload("text", _cleaned(text), max(len(payload) - SHOWN_BYTES, 0))


def _cleaned(text: str) -> str:
    """Return *text* without what would turn or hide its letters, such as marks of direction."""
    return "".join(it if it.isprintable() or it in "\t\r\n" else "\N{REPLACEMENT CHARACTER}" for it in text)


def _json(payload: bytes) -> ShownPayload | None:
    if len(payload) > JSON_BYTES:
        return None
    try:
        text = json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return ShownPayload("json", _cleaned(text[:SHOWN_BYTES]), max(len(text) - SHOWN_BYTES, 0))


def _hex(payload: bytes) -> ShownPayload:
    lines = []
    for at in range(0, min(len(payload), HEX_BYTES), COLUMNS):
        some = payload[at : at + COLUMNS]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:08x}  {some.hex(' '):<{COLUMNS * 3 - 1}}  {letters}")
    return ShownPayload("hex", "\n".join(lines), max(len(payload) - HEX_BYTES, 0))
