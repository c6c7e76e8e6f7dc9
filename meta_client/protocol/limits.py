"""Bounds of a peer's incomplete commands. Genuine peers set none."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# A line holds names and numbers; the longest part, a transaction key, has at most 1 KiB.
LINE_BYTES_MAX = 8 * KIB
# Eight times the largest message a genuine consumer can take (2 MiB, spec 1.8), so that batches and the answers
# to large fetches fit, while a thousand hostile connections still can't claim more than 16 GiB, sent in full.
BODY_BYTES_MAX = 16 * MIB

# The ids that a broker can assign in a millisecond: those of a batch are consecutive.
BATCH_MESSAGES_MAX = 4096


# A searched attribute must fit into a line in hexadecimal, with names; the matches of one answer into a few KiB.
FIND_KEY_BYTES_MAX = 2 * KIB
FIND_MATCHES_MAX = 256


AUTH_BYTES_MAX = 2 * KIB  # of one message: a name, a nonce and a proof take a few hundred bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection's decoder; a peer that exceeds one is disconnected."""

    line_bytes_max: int = LINE_BYTES_MAX  # without the CRLF
    body_bytes_max: int = BODY_BYTES_MAX

    def __post_init__(self) -> None:
        if self.line_bytes_max < 1 or self.body_bytes_max < 0:
            raise ValueError(f"{self} bounds nothing: lines need a byte or more, bodies zero or more")
