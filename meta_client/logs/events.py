"""Turns a log record's template and arguments into an event and its fields. Pure.

Templates of this project read `event key=%s key=%d: what to do`. Arguments are a peer's, a disk's or an operator's:
none of them may look like another field, or like another line.
"""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_SPEC: Final = r"%[-#0 +]*\d*(?:\.\d+)?[hlL]?[diouxXeEfFgGcrsa]"
_BESIDE: Final = r"[\w./#@-]"  # of a value, beside its arguments
_VALUE: Final = rf"{_BESIDE}*{_SPEC}(?:(?:{_BESIDE}+|:){_SPEC})*{_BESIDE}*"
_FIELD: Final = re.compile(rf"(?<!\S)(?P<name>[A-Za-z_]\w*)=(?P<value>{_VALUE})(?: m?s(?![\w=]))?")
_ANY_SPEC: Final = re.compile(rf"%%|{_SPEC}")
_PLAIN: Final = re.compile(r'[^\s"=\\]+')
TEMPLATES_MAX: Final = 2_000  # parsed templates kept; this project has some 500


class Event(NamedTuple):
    """Event of a record. *text* is the whole as one line, `event key=value ...: detail`, with its values quoted."""

    name: str
    fields: dict[str, object]
    detail: str
    text: str


class _Part(NamedTuple):
    """A piece of a template. *name* None: text between fields."""

    name: str | None
    template: str
    args: int
    unit: str = ""


def escape(text: str) -> str:
    """Return *text* as one line of printable characters."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "replace").decode() for one in text)


def quote(text: str) -> str:
    """Return *text* as the value of a field: in quotes unless it is one plain word."""
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def event_of(record: logging.LogRecord) -> Event:
    """Return the event that *record* logs. One whose template and arguments do not match is an event without fields."""
    args = record.args if isinstance(record.args, tuple) else ()
    if not isinstance(record.msg, str) or (record.args and not args):
        return _plain(record)
    parts = _parts(record.msg)
    if sum(part.args for part in parts) != len(args):
        return _plain(record)
    try:
        return _filled(parts, args)
    except (TypeError, ValueError):
        return _plain(record)


def _plain(record: logging.LogRecord) -> Event:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        text = f"{record.msg} {record.args!r}"  # logged all the same
    return Event(text, {}, "", escape(text))


@lru_cache(TEMPLATES_MAX)
def _parts(template: str) -> tuple[_Part, ...]:
    found: list[_Part] = []
    position = 0
    for match in _FIELD.finditer(template):
        if match.start() > position:
            found.append(_text(template[position : match.start()]))
        value = match["value"]
        unit = template[match.end("value") : match.end()]
        found.append(_Part(match["name"], value, len(_ANY_SPEC.findall(value)), unit))
        position = match.end()
    if position < len(template):
        found.append(_text(template[position:]))
    return tuple(found)


def _text(template: str) -> _Part:
    return _Part(None, template, sum(spec != "%%" for spec in _ANY_SPEC.findall(template)))


def _filled(parts: Sequence[_Part], args: Sequence[object]) -> Event:
    fields: dict[str, object] = {}
    between: list[str] = []
    text, name, at = "", "", 0
    for part in parts:
        values, at = args[at : at + part.args], at + part.args
        if part.name is None:
            filled = part.template % tuple(map(_free, values))
            if fields or between:
                between.append(filled)
            else:
                name, colon, rest = filled.partition(": ")
                between += [rest] if colon else []
            text += filled
        else:
            value = _value(part.template, values)
            fields[part.name] = value
            text += f"{part.name}={quote(str(value))}{part.unit}"
    detail = " ".join(stripped for one in between if (stripped := one.strip(" :,;")))
    return Event(name.rstrip(" :,;"), fields, detail, text)


def _free(value: object) -> object:
    """Return an argument that stands in the text: words stay as they are, a text with fields of its own is quoted."""
    if isinstance(value, int | float):
        return value
    text = str(value)
    return quote(text) if "=" in text else escape(text)


def _value(template: str, values: Sequence[object]) -> object:
    """Return a field's value: a number or None as it is, anything else as text."""
    if template in ("%s", "%d", "%r"):
        (value,) = values
        is_kept = value is None or isinstance(value, int | float) or (isinstance(value, str) and template != "%d")
        return value if is_kept else template % (value,)
    return template % tuple(values)
