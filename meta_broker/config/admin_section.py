"""`[admin]`: where metrics and health are served. Stands alone: each section of the file has its own."""

import os
from pathlib import Path
from typing import Final

import msgspec

from meta_broker.config.broker_section import check_range, why_not_a_host
from meta_broker.errors import ConfigError
from meta_client.errors import InvalidSecurity
from meta_client.net.security import why_not_private

TOKEN_BYTES_MIN: Final = 16
TOKEN_BYTES_MAX: Final = 1024


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[admin]`; the port is the same as --admin-port."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: off; 0: any free one
    token_file: str | None = None  # of the token that scrapers show; None: nobody has to; a reload reads it again

    def token(self) -> str | None:
        """Read the first line of the file; None: there is none. Raises InvalidSecurity, which does not quote it."""
        if self.token_file is None:
            return None
        path, remedy = Path(self.token_file), f"write {TOKEN_BYTES_MIN} random characters or more"
        try:
            with path.open("rb") as file:
                status, line = os.fstat(file.fileno()), file.read(TOKEN_BYTES_MAX + 1).split(b"\n", 1)[0].strip()
        except OSError as error:
            raise InvalidSecurity(f"the token file {path} can't be read: {error.strerror}") from error
        if why := why_not_private(path, status):
            raise InvalidSecurity(why)
        if not TOKEN_BYTES_MIN <= len(line) <= TOKEN_BYTES_MAX or not line.isascii() or len(line.split()) > 1:
            raise InvalidSecurity(f"{path} holds no token in its first line: {remedy}")
        return line.decode()


def check_admin(section: AdminSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    if section.port is not None:
        check_range(f"{where}: admin.port", section.port, 0, 65535)
    if reason := why_not_a_host(section.host):
        raise ConfigError(f"{where}: admin.host {reason}")
    try:
        section.token()
    except InvalidSecurity as error:
        raise ConfigError(f"{where}: admin: {error}") from error
