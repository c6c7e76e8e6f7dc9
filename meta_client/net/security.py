"""Ways to connect safely: TLS, and the name and password by which brokers know this client."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from meta_client.errors import InvalidSecurity
from meta_client.net.tls import TlsConfig

PASSWORD_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """A principal's name and password, which prove each side to the other (SCRAM-SHA-256). Immutable.

    The password is never sent, and no text of this object shows it.
    """

    user: str
    password: str = field(repr=False)

    @classmethod
    def load(cls, user: str, path: str | os.PathLike[str]) -> Self:
        """Read the password of *user* from the first line of a file. Raises InvalidSecurity."""
        try:
            with Path(path).open("rb") as file:
                line = file.read(PASSWORD_BYTES_MAX + 2).split(b"\n", 1)[0].rstrip(b"\r")
            return cls(user, line.decode())
        except OSError as error:
            raise InvalidSecurity(f"the password file {path} can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidSecurity(f"the password file {path} is not UTF-8") from error

    def __post_init__(self) -> None:
        if not self.user or not self.password or len(self.password.encode()) > PASSWORD_BYTES_MAX:
            raise InvalidSecurity(f"a user and a password of 1 to {PASSWORD_BYTES_MAX} bytes are needed")


def why_not_private(path: str | os.PathLike[str], status: os.stat_result) -> str:
    """Return why others than root and this process's user may read or change a file; blank: they may not."""
    if status.st_mode & 0o077:
        return f"{path}: others than its owner may read or change it: chmod 600 {path}"
    if status.st_uid not in (0, os.geteuid()):
        return f"{path}: it belongs to another user, who may change it: run this as that user, or chown it"
    return ""


class Security(NamedTuple):
    """Safety of each connection of a client."""

    tls: TlsConfig | None = None
    credentials: Credentials | None = None

    def check(self) -> Self:
        """Return it. Raises InvalidSecurity if the files of `tls` can't be used."""
        if self.tls is not None:
            self.tls.context()
        return self


PLAIN: Final = Security()
