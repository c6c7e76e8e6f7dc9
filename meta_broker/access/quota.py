"""A quota: how much of a broker one principal, or one address, may use. Pure."""

import math
from typing import Any, Final

import msgspec

from meta_broker.errors import ConfigError

_NUMBER_MAX: Final = 1e12


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits; None: there is none. 0 allows nothing, apart from what `net.throttle` never limits."""

    connections_max: int | None = None  # open at once
    branches_max: int | None = None  # begun over its connections and alive, XA and local
    requests_per_second: float | None = None
    bytes_in_per_second: float | None = None  # received
    bytes_out_per_second: float | None = None  # of answers


UNLIMITED: Final = Quota()


def parse_quota(section: Any, what: str) -> Quota:
    """Check a section of a configuration. *what* names it in errors. Raises ConfigError."""
    if not isinstance(section, dict):
        raise ConfigError(f"{what} is no section: write {{requests_per_second = 100}}")
    for key in section:
        if key not in Quota.__struct_fields__:
            raise ConfigError(f"{what}: unknown key {key!r}: known are {', '.join(Quota.__struct_fields__)}")
    try:
        quota = msgspec.convert(section, Quota, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what}: {error}") from None
    check_quota(quota, what)
    return quota


def check_quota(quota: Quota, what: str) -> None:
    """Raise ConfigError for a number that can't be."""
    for key, number in msgspec.structs.asdict(quota).items():
        if number is not None and not (math.isfinite(number) and 0 <= number <= _NUMBER_MAX):
            raise ConfigError(f"{what}.{key} is {number}: use a number from 0 to {_NUMBER_MAX:.0f}")


def merged(own: Quota, default: Quota) -> Quota:
    """Return *own*, with the limits of *default* where it has none."""
    given = {key: number for key, number in msgspec.structs.asdict(own).items() if number is not None}
    return msgspec.structs.replace(default, **given)
