"""What proves that a ZooKeeper session is one's own. Pure."""

from dataclasses import dataclass, field

PASSWORD_BYTES = 16  # what servers hand out


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """A session's id and password. The password is a secret: it stands in no log and no message."""

    session_id: int
    password: bytes = field(repr=False)
