"""The version text: the peer's product, and which extensions it knows.

The answer to `version` may be any text (spec 1.5.7). A metaq broker says `1.4.6 metaq/<version> <extension> ...
broker-<id>`: Java clients ignore it, ours use an extension only if it is listed, and a broker only if it is the one
that they look for.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

COMPATIBLE_VERSION = "1.4.6"
_TEXT_BYTES_MAX = 4096  # what is read of a peer's text
_PRODUCT = "metaq/"
_EXTENSION = re.compile(r"[a-z][a-z0-9-]{0,31}")
_BROKER = re.compile(r"broker-([0-9]{1,10})")  # an extension to clients that know nothing of it


def version_text(version: str, extensions: Iterable[str] = (), broker_id: int | None = None) -> str:
    """Return the answer of a broker of metaq *version*."""
    words = [COMPATIBLE_VERSION, f"{_PRODUCT}{version}", *extensions]
    words += [] if broker_id is None else [f"broker-{broker_id}"]
    assert all(_EXTENSION.fullmatch(word) for word in words[2:])
    assert not any(c.isspace() for c in version)
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Extensions promised by the peer's version text."""

    metaq_version: str | None  # None: a genuine broker, or anything else that is no metaq
    extensions: frozenset[str] = frozenset()
    broker_id: int | None = None  # None: it does not tell

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read a version text. Never raises: what can't be read promises nothing."""
        words = text[:_TEXT_BYTES_MAX].decode(errors="replace").split()
        for index, word in enumerate(words):
            if word.startswith(_PRODUCT) and word != _PRODUCT:
                names = frozenset(name for name in words[index + 1 :] if _EXTENSION.fullmatch(name))
                broker_ids = {int(match[1]) for name in names if (match := _BROKER.fullmatch(name))}
                extensions = frozenset(name for name in names if not _BROKER.fullmatch(name))
                return cls(word.removeprefix(_PRODUCT), extensions, min(broker_ids, default=None))
        return cls(None)
