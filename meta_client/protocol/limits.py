"""How much a peer may make us hold before it has said something whole. Genuine peers set no bound at all."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# A line holds names and numbers; the longest part, a transaction key, has at most 1 KiB.
LINE_BYTES_MAX = 8 * KIB
# Eight times the largest message a genuine consumer can take (2 MiB, spec 1.8), so that batches and the answers
# to large fetches fit, while a thousand hostile connections still can't claim more than 16 GiB, sent in full.
BODY_BYTES_MAX = 16 * MIB

# As many ids as a broker can give out in a millisecond: those of a batch follow one another.
BATCH_MESSAGES_MAX = 4096


# Of an attribute that is searched for: in hexadecimal it fits into a line, with names beside it. Of the matches that
# one answer names: a few KiB.
FIND_KEY_BYTES_MAX = 2 * KIB
FIND_MATCHES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection's decoder; a peer that goes over one is cut off."""

    line_bytes_max: int = LINE_BYTES_MAX  # without the CRLF
    body_bytes_max: int = BODY_BYTES_MAX

    def __post_init__(self) -> None:
        if self.line_bytes_max < 1 or self.body_bytes_max < 0:
            raise ValueError(f"{self} bounds nothing: lines need a byte or more, bodies zero or more")
