"""XA return codes, and the text that carries one in a result (spec 2.3)."""

import re
from typing import NamedTuple

from journal.records.states import XaCode

__all__ = ["XaCode", "XaFailure", "format_xa_failure", "parse_xa_failure"]


class XaFailure(NamedTuple):
    """Content of an `XAException:` text. The code is a plain int: a peer may know other codes."""

    code: int
    text: str


_PREFIX = "XAException:"
_CODE_AND_TEXT = re.compile(r"code=(-?[0-9]{1,10}),msg=([^\r\n]*)")


def format_xa_failure(code: int, text: str) -> str:
    """The text of a 500 that refuses a transaction command.

    Line breaks in *text* become spaces: the Java client reads up to the end of the first line.
    """
    return f"{_PREFIX}code={int(code)},msg={' '.join(text.splitlines())}"


def parse_xa_failure(text: str) -> XaFailure | None:
    """Read what format_xa_failure wrote; None for every other text, which is then no XA failure."""
    if not text.startswith(_PREFIX) or (match := _CODE_AND_TEXT.search(text)) is None:
        return None
    return XaFailure(int(match[1]), match[2])
