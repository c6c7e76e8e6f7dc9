"""W3C trace context of a message, at the end of its attribute. Pure.

    attribute, US (unit separator), "traceparent=", 55 characters of version 00      a message with an attribute
    "traceparent=", 55 characters                                                   one without

Genuine clients read all of it as the attribute; metaq's clients take it off again.
"""

import re
from typing import Final

_NAME: Final = "traceparent="
_PARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_PARENT_CHARS: Final = 55
_CHARS: Final = len(_NAME) + _PARENT_CHARS
_SEPARATOR: Final = "\x1f"


def is_traceparent(text: str) -> bool:
    """Return whether *text* is a trace context of version 00."""
    return _PARENT.fullmatch(text) is not None


def with_traceparent(attribute: str | None, traceparent: str) -> str:
    """Return the attribute that goes on the wire. *traceparent* is one of version 00."""
    assert _PARENT.fullmatch(traceparent) is not None, traceparent
    return f"{'' if attribute is None else attribute + _SEPARATOR}{_NAME}{traceparent}"


def split_traceparent(attribute: str) -> tuple[str | None, str | None]:
    """Return the user's attribute and the trace context of an attribute from the wire; None: there is none."""
    if attribute[-_CHARS:-_PARENT_CHARS] != _NAME:
        return attribute, None
    own, traceparent = attribute[:-_CHARS], attribute[-_PARENT_CHARS:]
    if _PARENT.fullmatch(traceparent) is None or (own and own[-1] != _SEPARATOR):
        return attribute, None
    return own[:-1] if own else None, traceparent
