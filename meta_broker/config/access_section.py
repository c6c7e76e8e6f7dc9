"""`[access]`: who may do what, and the principal as which this broker logs in at others."""

from pathlib import Path

import msgspec

from meta_broker.access.rules import Principals, load_rules
from meta_broker.errors import ConfigError
from meta_client.errors import InvalidSecurity
from meta_client.net.security import Credentials


class AccessSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[access]`. A reload reads the file again."""

    file: str | None = None  # of principals and their rights; None: everybody may do everything
    user: str | None = None  # of this broker, as it logs in: a slave at its master, a promotion at slaves
    password_file: str | None = None  # its password

    def rules(self) -> Principals | None:
        """Read the file; None: there is none. Raises ConfigError."""
        if self.file is None:
            return None
        rules = load_rules(Path(self.file))
        if not rules.principals:
            raise ConfigError(
                f"{self.file} names no principal, so that nobody could connect: `metaq access add` adds one"
            )
        return rules

    def credentials(self) -> Credentials | None:
        """Return those of this broker, as its password file has them now. Raises InvalidSecurity."""
        if self.user is None or self.password_file is None:
            return None
        return Credentials.load(self.user, self.password_file)


def check_access(section: AccessSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file. The rules check themselves."""
    if (section.user is None) != (section.password_file is None):
        raise ConfigError(f"{where}: access.user and access.password_file need each other: give both")
    try:
        section.credentials()
    except InvalidSecurity as error:
        raise ConfigError(f"{where}: access: {error}") from error
