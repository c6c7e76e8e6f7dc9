"""`[admin]`: where metrics and health are served. Stands alone: each section of the file has its own."""

import msgspec

from meta_broker.config.broker_section import check_range, why_not_a_host
from meta_broker.errors import ConfigError


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[admin]`; the port is the same as --admin-port."""

    host: str = "127.0.0.1"  # nobody has to authenticate, so only local by default
    port: int | None = None  # None: off; 0: any free one


def check_admin(section: AdminSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be; *where* names the file."""
    if section.port is not None:
        check_range(f"{where}: admin.port", section.port, 0, 65535)
    if reason := why_not_a_host(section.host):
        raise ConfigError(f"{where}: admin.host {reason}")
