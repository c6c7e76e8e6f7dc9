"""Credentials of a ZooKeeper session. Pure."""

from dataclasses import dataclass, field

PASSWORD_BYTES = 16  # what servers hand out


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """A session's id and password. The password is a secret: never log it or put it in a message."""

    session_id: int
    password: bytes = field(repr=False)
