"""Responses: what a broker answers (spec 1.4). The opaque is the request's; responses come in any order."""

import re
from typing import NamedTuple

import msgspec

from meta_client.protocol.requests import Body
from meta_client.protocol.status import Status


# Structs, and not frozen, for the reasons given in requests.py.
class Result(msgspec.Struct):
    """A status and a text. What an empty text means depends on the request; the wire can't tell it from none."""

    status: int  # usually a Status
    message: bytes
    opaque: int

    @property
    def is_success(self) -> bool:
        """True if the request succeeded. Every other status is a failure."""
        return self.status == Status.SUCCESS

    @property
    def text(self) -> str:
        """The message for people. Bytes that are not UTF-8 show as U+FFFD, as in the Java client."""
        return self.message.decode(errors="replace")


class Value(msgspec.Struct):
    """Message frames, packed back to back, the last one possibly cut off. Answers a get, nothing else."""

    body: Body
    opaque: int


# Ends the text of a 301 that answers a fetch: what is skipped is all there, and the group's filter wants none of it.
FILTERED = b" filtered"

# Which replica a consumer reads from next: the master, or a slave by its number.
READ_FROM_MASTER = "m"
READ_FROM = re.compile(r"m|s[0-9]{1,9}")


class Behind(NamedTuple):
    """Lag of a slave behind its master."""

    bytes: int  # of the journal: what the master had when last heard from, and the slave does not show
    silent_ms: int  # how long ago that was


class Data(msgspec.Struct):
    """Message frames as in a Value, none if nothing came in time. Answers a fetch, nothing else."""

    body: Body
    log_end: int  # the partition's end, exclusive
    read_from: str  # as READ_FROM: where to ask next
    opaque: int
    behind: Behind | None = None  # a slave answers


Response = Result | Value | Data
