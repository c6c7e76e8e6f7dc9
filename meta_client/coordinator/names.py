"""Names of transactions, by which recovery recognises those of one log.

gtrid = ``<name>.<birth>.<nonce>``: the coordinator's name, eight hexadecimal digits drawn when its log was created, and
128 random bits as 22 characters. No counters: processes with copies of one log (a copy, a fork, a restored backup)
never reuse a name. A log created again after a loss has another birth, so it does not roll back the old one's branches
as undecided.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Self

from journal.records.xid import GTRID_BYTES_MAX, Xid
from meta_client.protocol.errors import MetaError

NAME_BYTES_MAX = 32
NONCE_BYTES = 16
DATABASE, BROKER = b"db", b"mq"  # branch qualifiers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_BIRTH = re.compile(r"[0-9a-f]{8}", re.ASCII)
_NONCE_CHARACTERS = 22  # of NONCE_BYTES in base64, for file names and URLs
_GTRID = re.compile(rf"({_NAME.pattern})\.({_BIRTH.pattern})\.[A-Za-z0-9_-]{{{_NONCE_CHARACTERS}}}", re.ASCII)
GTRID_PATTERN = rf"({_NAME.pattern}\.{_BIRTH.pattern})\.[A-Za-z0-9_-]{{{_NONCE_CHARACTERS}}}"  # its group: the log
_CLUSTER = "coordinator"


class InvalidCoordinatorName(MetaError, ValueError):
    """Invalid coordinator name. Choose another."""


@dataclass(frozen=True, slots=True)
class LogName:
    """Identity of a decision log."""

    name: str
    birth: str

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidCoordinatorName(
                f"{self.name!r} can't name a coordinator: use 1 to {NAME_BYTES_MAX} letters, digits, _ and -"
            )
        if _BIRTH.fullmatch(self.birth) is None:
            raise InvalidCoordinatorName(f"{self.birth!r} is not 8 hexadecimal digits")

    @property
    def label(self) -> str:
        """Name for people of the coordinator whose log this is."""
        return f"{self.name}.{self.birth}"

    @property
    def prefix(self) -> bytes:
        """Prefix of this log's gtrids, and of no other's."""
        return f"{self.label}.".encode()

    @property
    def cluster(self) -> str:
        """Cluster field of the log's segment headers."""
        return f"{_CLUSTER}:{self.name}:{self.birth}"

    @classmethod
    def of_cluster(cls, cluster: str) -> Self | None:
        """Return the name in a segment header's cluster; None for a broker's journal."""
        match cluster.split(":"):
            case [kind, name, birth] if kind == _CLUSTER:
                try:
                    return cls(name, birth)
                except InvalidCoordinatorName:
                    return None
        return None

    def xid(self, nonce: str) -> Xid:
        """Return the identifier of a whole transaction; `branch` derives those of its branches. *nonce*: from
        `new_nonce`."""
        assert len(nonce) == _NONCE_CHARACTERS
        return Xid(1, self.prefix + nonce.encode(), b"")

    def owns(self, xid: Xid) -> bool:
        return xid.format_id == 1 and xid.gtrid.startswith(self.prefix)

    def is_namesake(self, xid: Xid) -> bool:
        """True if *xid* is from another log of the same name: a lost one, or one on another machine."""
        return xid.gtrid.startswith(f"{self.name}.".encode()) and not self.owns(xid)


def log_of(xid: Xid) -> LogName | None:
    """Return the log that decides *xid*; None for a branch of another kind."""
    match = _GTRID.fullmatch(xid.gtrid.decode("ascii", errors="replace"))
    if match is None or xid.format_id != 1 or xid.bqual not in (DATABASE, BROKER):
        return None
    return LogName(match[1], match[2])


def branch(xid: Xid, qualifier: bytes) -> Xid:
    """Return the branch of transaction *xid* at one participant."""
    return Xid(xid.format_id, xid.gtrid, qualifier)


def new_nonce() -> str:
    """Return 128 random bits from the system, fork-safe."""
    return secrets.token_urlsafe(NONCE_BYTES)


# name, birth, the nonce, and two separators
assert NAME_BYTES_MAX + 1 + 8 + 1 + _NONCE_CHARACTERS == GTRID_BYTES_MAX
