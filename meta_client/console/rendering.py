"""Templates, autoescaped, and the words that numbers, ages and states have in them."""

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2

from meta_client.console.reads import Unknown
from meta_client.operations.broker_rows import number
from meta_client.operations.text import age_text, time_text

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
UNKNOWN: Final = "unknown"


def _sound(value: object) -> object:
    """Return *value*, digits as a number; None for what is no number of 64 bits."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 63
    return value if is_number else None


def count(value: object) -> str:
    """Format a number with thin spaces between thousands; unknown for anything else."""
    value = _sound(value)
    if not isinstance(value, int):
        return UNKNOWN
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def messages(value: object) -> str:
    return "1 message" if value == 1 else f"{count(value)} messages"


def size(value: object) -> str:
    """Format bytes as `1.5 MiB`."""
    value = _sound(value)
    if not isinstance(value, int | float):
        return UNKNOWN
    left, unit = float(value), 0
    while abs(left) >= 1024 and unit < len(_UNITS) - 1:
        left, unit = left / 1024, unit + 1
    return f"{left:.0f} {_UNITS[unit]}" if not unit or left >= 100 else f"{left:.1f} {_UNITS[unit]}"


def seconds(value: object) -> str:
    """Format a duration in its two largest units; below ten seconds with a digit behind the point."""
    value = _sound(value)
    if not isinstance(value, int | float):
        return UNKNOWN
    return f"{value:.1f} s" if 0 < value < 10 else age_text(value)


def since(time_ms: object) -> str:
    """Format the time that has passed since *time_ms*; unknown for 0."""
    time_ms = _sound(time_ms)
    if not isinstance(time_ms, int) or time_ms <= 0:
        return UNKNOWN
    return age_text(max(0.0, time.time() - time_ms / 1000))


def clock(time_ms: object) -> str:
    """Format a time in UTC."""
    time_ms = _sound(time_ms)
    return time_text(time_ms) if isinstance(time_ms, int) and time_ms > 0 else UNKNOWN


def rate(value: object) -> str:
    """Format a rate; `measuring` until there are two samples."""
    if isinstance(value, Unknown):
        return UNKNOWN
    return "measuring" if not isinstance(value, int | float) else f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"


def path(*parts: object, **query: object) -> str:
    """Return a path of this console, of hostile parts."""
    place = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value is not None}
    return f"{place}?{urlencode(given)}" if given else place


FILTERS: Final[Mapping[str, Callable[..., object]]] = {
    "whole": number,
    "count": count,
    "messages": messages,
    "size": size,
    "seconds": seconds,
    "since": since,
    "clock": clock,
    "rate": rate,
}


@cache
def environment() -> jinja2.Environment:
    """Return the templates. Undefined names are errors; everything is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("meta_client.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= FILTERS
    made.globals |= {"path": path}
    made.tests["unknown"] = lambda value: isinstance(value, Unknown)
    return made


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)
