"""Names transactions, so that recovery knows its own.

gtrid = ``<name>.<birth>.<nonce>``: the coordinator's name, eight hexadecimal digits drawn when its log was created,
and 128 random bits of the transaction's own, as 22 characters. Nothing is counted: two processes with one log (a copy,
a fork, a backup that was put back) never give one name twice. A log that was lost and made anew has another birth, so
that it never takes the old one's branches for undecided ones of its own.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Self

from journal.xid import GTRID_BYTES_MAX, Xid
from meta_client.protocol.errors import MetaError

NAME_BYTES_MAX = 32
NONCE_BYTES = 16
DATABASE, BROKER = b"db", b"mq"  # branch qualifiers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_BIRTH = re.compile(r"[0-9a-f]{8}", re.ASCII)
_NONCE_CHARACTERS = 22  # of NONCE_BYTES in base64, for file names and URLs
_CLUSTER = "coordinator"


class InvalidName(MetaError, ValueError):
    """A text that can't be a coordinator's name. Choose another."""


@dataclass(frozen=True, slots=True)
class LogName:
    """Whose decisions a log holds."""

    name: str
    birth: str

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidName(
                f"{self.name!r} can't name a coordinator: use 1 to {NAME_BYTES_MAX} letters, digits, _ and -"
            )
        if _BIRTH.fullmatch(self.birth) is None:
            raise InvalidName(f"{self.birth!r} is not 8 hexadecimal digits")

    @property
    def prefix(self) -> bytes:
        """What every gtrid of this log begins with, and no other coordinator's does."""
        return f"{self.name}.{self.birth}.".encode()

    @property
    def cluster(self) -> str:
        """What stands as the cluster in the log's segment headers."""
        return f"{_CLUSTER}:{self.name}:{self.birth}"

    @classmethod
    def of_cluster(cls, cluster: str) -> Self | None:
        """The name in a segment header's cluster; None when it is a broker's journal."""
        match cluster.split(":"):
            case [kind, name, birth] if kind == _CLUSTER:
                try:
                    return cls(name, birth)
                except InvalidName:
                    return None
        return None

    def xid(self, nonce: str) -> Xid:
        """The identifier of a whole transaction; its branches are `branch`es of it. *nonce*: `new_nonce`."""
        assert len(nonce) == _NONCE_CHARACTERS
        return Xid(1, self.prefix + nonce.encode(), b"")

    def owns(self, xid: Xid) -> bool:
        return xid.format_id == 1 and xid.gtrid.startswith(self.prefix)

    def is_namesake(self, xid: Xid) -> bool:
        """Whether a coordinator of this name made *xid*, with another log: a lost one, or one on another machine."""
        return xid.gtrid.startswith(f"{self.name}.".encode()) and not self.owns(xid)


def branch(xid: Xid, qualifier: bytes) -> Xid:
    """The branch of transaction *xid* at one participant."""
    return Xid(xid.format_id, xid.gtrid, qualifier)


def new_nonce() -> str:
    """What makes a transaction's identifier its own: 128 bits from the system, in a forked process too."""
    return secrets.token_urlsafe(NONCE_BYTES)


# name, birth, the nonce, and the two marks between them
assert NAME_BYTES_MAX + 1 + 8 + 1 + _NONCE_CHARACTERS == GTRID_BYTES_MAX
