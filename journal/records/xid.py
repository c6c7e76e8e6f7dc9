"""Transaction identifiers, and their two texts: the database's and the wire's.

Pure. X/Open XA names a branch by format id, global transaction id (gtrid) and branch qualifier (bqual).
psycopg and pgjdbc write that triple as ``<format id>_<base64 gtrid>_<base64 bqual>``; MetaQ writes it as
``XID:<format id>:<hex gtrid>:<hex bqual>:<unique qualifier>`` (spec 2.1). Both texts are kept exactly, so
that an identifier pasted from ``pg_prepared_xacts`` finds the same branch on a broker.
"""

import base64
import binascii
import re
from sys import intern
from typing import Self

import msgspec
from msgspec.structs import force_setattr

GTRID_BYTES_MAX = 64  # X/Open XA, MAXGTRIDSIZE
BQUAL_BYTES_MAX = 64  # X/Open XA, MAXBQUALSIZE
KEY_BYTES_MAX = 1024  # a branch key stands in a command line and in record headers
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

_DATABASE_TEXT = re.compile(r"(-?\d{1,10})_([A-Za-z0-9+/]*={0,2})_([A-Za-z0-9+/]*={0,2})")
_DECIMAL = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_BLANK = re.compile(r"[:\r\n\t ]")


class InvalidXid(ValueError):
    """A text or a set of parts that can never be a transaction identifier."""


# Structs, because keys are made, hashed and compared with every request about a branch: their functions are C.
class Xid(msgspec.Struct, frozen=True, order=True):
    """An X/Open transaction branch identifier, under which both the database and the broker prepare."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __post_init__(self) -> None:
        if not INT32_MIN <= self.format_id <= INT32_MAX:
            raise InvalidXid(f"format id {self.format_id} is not an int32")
        if len(self.gtrid) > GTRID_BYTES_MAX:
            raise InvalidXid(f"gtrid of {len(self.gtrid)} bytes is longer than {GTRID_BYTES_MAX}")
        if len(self.bqual) > BQUAL_BYTES_MAX:
            raise InvalidXid(f"bqual of {len(self.bqual)} bytes is longer than {BQUAL_BYTES_MAX}")

    @classmethod
    def of(cls, gtrid: str, bqual: str, format_id: int = 1) -> Self:
        """Make an identifier from readable parts, as PEP 249's ``xid(format_id, gtrid, bqual)`` takes them."""
        return cls(format_id, gtrid.encode(), bqual.encode())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that psycopg and pgjdbc write. Raises InvalidXid for any other gid."""
        if (match := _DATABASE_TEXT.fullmatch(text)) is None:
            raise InvalidXid(f"{text!r} is not <format id>_<base64 gtrid>_<base64 bqual>")
        try:
            gtrid, bqual = (base64.b64decode(part, validate=True) for part in match.group(2, 3))
        except binascii.Error as error:
            raise InvalidXid(f"{text!r} holds broken base64: {error}") from error
        return cls(int(match[1]), gtrid, bqual)

    def __str__(self) -> str:
        gtrid, bqual = (base64.b64encode(part).decode() for part in (self.gtrid, self.bqual))
        return f"{self.format_id}_{gtrid}_{bqual}"


class LocalKey(msgspec.Struct, frozen=True, order=True):
    """A local transaction: number *n* of a producer session. Dies with its connection (spec 2.4)."""

    session_id: str
    number: int

    def __post_init__(self) -> None:
        if _BLANK.search(self.session_id):
            raise InvalidXid(f"session id {self.session_id!r} holds a colon or white space")
        if not INT32_MIN <= self.number <= INT32_MAX:
            raise InvalidXid(f"transaction number {self.number} is not an int32")

    def __str__(self) -> str:
        return f"TX:{self.session_id}:{self.number}"


class XaKey(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """Key of an XA branch in a broker: the xid and its producer's unique qualifier, by which RECOVER filters."""

    xid: Xid
    qualifier: str
    # Cached, like the hash: a broker looks the branch up and writes its key with every request.
    _text: str = ""

    def __post_init__(self) -> None:
        if not self.qualifier or _BLANK.search(self.qualifier):
            raise InvalidXid(f"unique qualifier {self.qualifier!r} is blank or holds a colon or white space")
        xid = self.xid
        text = f"XID:{xid.format_id}:{xid.gtrid.hex()}:{xid.bqual.hex()}:{self.qualifier}"
        force_setattr(self, "_text", text)

    def __repr__(self) -> str:
        return f"XaKey(xid={self.xid!r}, qualifier={self.qualifier!r})"

    def __str__(self) -> str:
        return self._text


BranchKey = LocalKey | XaKey


def parse_key(text: str) -> BranchKey:
    """Parse a transaction key as on the wire and in the journal (spec 2.1). Raises InvalidXid."""
    if len(text) > KEY_BYTES_MAX:
        raise InvalidXid(f"transaction key of {len(text)} characters is longer than {KEY_BYTES_MAX}")
    match text.split(":"):
        case ["TX", session_id, number]:
            return LocalKey(session_id, _int32(number, text))
        case ["XID", format_id, gtrid, bqual, qualifier]:
            # Share one qualifier object among the thousands of branches that a producer may have.
            return XaKey(Xid(_int32(format_id, text), _hex(gtrid, text), _hex(bqual, text)), intern(qualifier))
    raise InvalidXid(f"{text!r} is not TX:<session>:<n> or XID:<format>:<gtrid>:<bqual>:<qualifier>")


def _int32(text: str, key: str) -> int:
    if _DECIMAL.fullmatch(text) is None or not INT32_MIN <= (number := int(text)) <= INT32_MAX:
        raise InvalidXid(f"{text!r} in {key!r} is not an int32")
    return number


def _hex(text: str, key: str) -> bytes:
    even = text[: len(text) & ~1]  # the ancestor ignores an odd trailing digit
    try:
        return bytes.fromhex(even)
    except ValueError as error:
        raise InvalidXid(f"{text!r} in {key!r} is not hexadecimal") from error
