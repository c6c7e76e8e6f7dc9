"""Safety of a ZooKeeper session: TLS, and a login whose nodes others may read and not change."""

import os
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo.security import ACL, READ_ACL_UNSAFE, Id, Permissions

from zk.errors import ZooKeeperError

PASSWORD_BYTES: Final = 16  # of a session, as servers hand out
# Of nodes made with a login: everything for it, reading for all. `auth` stands for the user that is logged in.
OWN_ACL: Final = (ACL(Permissions.ALL, Id("auth", "")), *READ_ACL_UNSAFE)


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """A session's id and password. The password is a secret: never log it or put it in a message."""

    session_id: int
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """Login and TLS of sessions. Immutable. No text of this object shows the password.

    *user* and *password*: a digest login; nodes made with it can be changed by the same login alone, so brokers and
    members of groups share one. *ca*: file with the certificates that sign the servers'; turns TLS on, and the servers
    are verified. *certificate* and *key*: this process's own.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    check_host: bool = True

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ZooKeeperError("a ZooKeeper login needs a user and a password: give both")
        if self.user is not None and (":" in self.user or not self.user):
            raise ZooKeeperError("a ZooKeeper user has a character or more, and no colon")
        if self.ca is None and (self.certificate or self.key):
            raise ZooKeeperError("TLS to ZooKeeper needs the CA of its servers: name its file")
        for path in (self.ca, self.certificate, self.key):
            if path is not None and not os.access(path, os.R_OK):
                raise ZooKeeperError(f"{os.fspath(path)} can't be read: name a PEM file")

    def options(self) -> dict[str, Any]:
        """Return the options of a KazooClient."""
        found: dict[str, Any] = {}
        if self.user is not None:
            found |= {"auth_data": [("digest", f"{self.user}:{self.password}")], "default_acl": list(OWN_ACL)}
        if self.ca is not None:
            files = {"ca": self.ca, "certfile": self.certificate, "keyfile": self.key}
            found |= {name: os.fspath(path) for name, path in files.items() if path is not None}
            found |= {"use_ssl": True, "verify_certs": True, "check_hostname": self.check_host}
        return found


PLAIN: Final = ZooKeeperSecurity()


def is_open(acls: list[ACL]) -> bool:
    """Return whether anybody may change or delete a node with these access rules."""
    return any(acl.id.scheme == "world" and acl.perms & (Permissions.ALL & ~Permissions.READ) for acl in acls)
