"""A principal: who a connection belongs to, and the rights that it has. Pure."""

import re
from enum import StrEnum
from typing import Final

import msgspec

NAME_BYTES_MAX: Final = 1024  # longer ones match nothing: no topic, group or qualifier has them
_PATTERN: Final = re.compile(r"[^\s\x00-\x1f\x7f\ud800-\udfff]{1,255}")  # what a file can hold


class Right(StrEnum):
    """A right over names: topics, and with GROUPS consumer groups, with DECIDE the qualifiers of XA branches."""

    PRODUCE = "produce"
    CONSUME = "consume"
    GROUPS = "groups"
    ADMIN = "admin"
    DECIDE = "decide"
    REPLICATE = "replicate"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Name and rights. Patterns of names: `*` stands for any characters."""

    name: str
    produce: tuple[str, ...] = ()  # put messages into these topics
    consume: tuple[str, ...] = ()  # read these topics
    groups: tuple[str, ...] = ("*",)  # as a member of these groups
    admin: tuple[str, ...] = ()  # change these topics; any: take checkpoints, see the configuration
    decide: tuple[str, ...] = ()  # begin and end XA branches of these qualifiers, also by hand
    replicate: bool = False  # follow as a slave: read all of the journal, and be counted in sync
    slaves: tuple[int, ...] = ()  # with these slave ids; none: with any
    verifier: str | None = None  # proves the password; secret
    addresses: tuple[str, ...] = ()  # ranges whose connections belong to it without a login
    certificates: tuple[str, ...] = ()  # names in client certificates that belong to it

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    def may(self, right: Right, name: str | None) -> bool:
        """Return whether it has *right* over *name*; None: over anything at all."""
        if right is Right.REPLICATE:
            return self.replicate
        patterns: tuple[str, ...] = getattr(self, right.value)
        if name is None:
            return bool(patterns)
        return len(name.encode()) <= NAME_BYTES_MAX and any(matches(pattern, name) for pattern in patterns)


def matches(pattern: str, name: str) -> bool:
    """Return whether *name* matches *pattern*. Without a regular expression, whose time hostile names could stretch."""
    first, *rest = re.split(r"\*+", pattern)
    if not rest:
        return name == first
    *middle, last = rest
    if not name.startswith(first) or len(name) < len(first) + len(last):
        return False
    position, end = len(first), len(name) - len(last)
    for piece in middle:
        if (found := name.find(piece, position, end)) < 0:
            return False
        position = found + len(piece)
    return name.endswith(last)


def is_pattern(text: str) -> bool:
    """Return whether *text* can be a name with stars."""
    return _PATTERN.fullmatch(text) is not None
