"""The access file: all principals, checked whole before any of it counts."""

import hashlib
import os
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from meta_broker.access.addresses import is_in, parse_address, parse_range
from meta_broker.access.principal import Principal, is_pattern
from meta_broker.access.quota import UNLIMITED, Quota, merged, parse_quota
from meta_broker.access.scram import Verifier, Verifiers
from meta_broker.errors import ConfigError
from meta_client.net.security import why_not_private

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_PATTERNS: Final = ("produce", "consume", "groups", "admin", "decide")


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    secret: str | None = None  # makes up verifiers of users that do not exist
    quota: dict[str, Any] = msgspec.field(default_factory=dict)  # of each principal, apart from what its own says
    principals: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


class Principals:
    """All principals, and what each may do. Immutable. Build it with `load`."""

    def __init__(self, principals: dict[str, Principal], secret: str | None, quotas: dict[str, Quota]) -> None:
        self.principals = principals
        self._quotas = quotas  # by principal
        known = {name: Verifier.parse(each.verifier) for name, each in principals.items() if each.verifier is not None}
        made_from = secret or "".join(sorted(map(str, known.values())))
        self.verifiers = Verifiers(known, hashlib.sha256(made_from.encode()).digest())
        self._ranges = sorted(
            ((parse_range(text), each) for each in principals.values() for text in each.addresses),
            key=lambda pair: -pair[0].prefixlen,
        )
        self._certificates = {text: each for each in principals.values() for text in each.certificates}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principals) and self.principals == other.principals and self._quotas == other._quotas

    __hash__ = None  # type: ignore[assignment]

    def quota_of(self, principal: Principal) -> Quota:
        return self._quotas.get(principal.name, UNLIMITED)

    def of_certificate(self, names: tuple[str, ...]) -> Principal | None:
        """Return the principal of a verified client certificate with these names."""
        return next((self._certificates[name] for name in names if name in self._certificates), None)

    def of_address(self, address: str) -> Principal | None:
        """Return the principal whose range *address* is in, the narrowest one; None: such a peer has to log in."""
        if not self._ranges or (parsed := parse_address(address)) is None:
            return None
        return next((each for among, each in self._ranges if is_in(parsed, among)), None)


def load_rules(path: Path) -> Principals:
    """Read the access file. Raises ConfigError, which names file, principal and key, and never quotes a secret."""
    try:
        with path.open("rb") as file:
            status, source = os.fstat(file.fileno()), file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: name a readable TOML file with access.file") from error
    if why := why_not_private(path, status):
        raise ConfigError(why)
    if len(source) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    return parse_rules(source, str(path))


def parse_rules(source: bytes, where: str) -> Principals:
    """Check the bytes of an access file. Raises ConfigError."""
    try:
        raw = tomllib.loads(source.decode())
        file = msgspec.convert(raw, _File, strict=True)
    except RecursionError as error:
        raise ConfigError(f"{where}: not TOML: nested too deeply") from error
    except ValueError as error:  # of TOML, UTF-8 and msgspec
        raise ConfigError(f"{where}: {error}") from None
    quotas = {name: section.pop("quota", {}) for name, section in file.principals.items()}
    principals = {name: _principal(name, section, where) for name, section in file.principals.items()}
    for key in ("addresses", "certificates"):
        owners: dict[str, str] = {}
        for each in principals.values():
            for text in getattr(each, key):
                if owners.setdefault(text, each.name) != each.name:
                    raise ConfigError(
                        f"{where}: {key} {text!r} belongs to {owners[text]} and to {each.name}: to one only"
                    )
    return Principals(principals, file.secret, _quotas(quotas, principals, file.quota, where))


def _quotas(
    own: dict[str, Any], principals: dict[str, Principal], common: dict[str, Any], where: str
) -> dict[str, Quota]:
    """Return the quota of each principal. The common one does not count for slaves: it must not part them from their
    master."""
    default = parse_quota(common, f"{where}: quota")
    return {
        name: merged(
            parse_quota(own[name], f"{where}: principals.{name!r}.quota"), UNLIMITED if each.replicate else default
        )
        for name, each in principals.items()
    }


def _principal(name: str, section: dict[str, Any], where: str) -> Principal:
    what = f"{where}: principals.{name!r}"
    if not is_pattern(name) or "*" in name:
        raise ConfigError(f"{what}: a name has 1 to 255 characters, no white space and no star")
    if "name" in section:
        raise ConfigError(f"{what}: unknown key name: the section is called by it")
    for key in section:
        if key not in Principal.__struct_fields__:
            known = ", ".join([*(field for field in Principal.__struct_fields__ if field != "name"), "quota"])
            raise ConfigError(f"{what}: unknown key {key!r}: known are {known}")
    try:
        made = msgspec.convert(section | {"name": name}, Principal, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what}: {error}") from None
    for key in _PATTERNS:
        for text in getattr(made, key):
            if not is_pattern(text):
                raise ConfigError(
                    f"{what}.{key}: {text!r} is no name with stars: it has 1 to 255 characters, none blank"
                )
    for text in made.addresses:
        try:
            parse_range(text)
        except ValueError as error:
            raise ConfigError(f"{what}.addresses: {error}") from None
    if made.slaves and not made.replicate:
        raise ConfigError(f"{what}.slaves: it may not replicate: add replicate = true, or leave slaves out")
    if made.verifier is not None:
        try:
            Verifier.parse(made.verifier)
        except ValueError as error:
            raise ConfigError(f"{what}.verifier: {error}") from None
    if not (made.verifier or made.addresses or made.certificates):
        raise ConfigError(f"{what}: nobody can be it: give a verifier (`metaq access add`), addresses or certificates")
    return made
