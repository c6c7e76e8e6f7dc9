"""`[tls]`, `[access]`, `[admin]`: who may connect, and who may do what."""

import os
import ssl
from pathlib import Path
from typing import Final, Literal

import msgspec

from meta_broker.access.addresses import parse_range
from meta_broker.access.rules import Principals, load_rules
from meta_broker.config.broker_section import check_range, why_not_a_host
from meta_broker.errors import ConfigError
from meta_client.errors import InvalidSecurity
from meta_client.net.security import Credentials, why_not_private
from meta_client.net.tls import TlsConfig, load_certificate

_ASKS: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`, of the broker's port, the replication link and the admin port. A reload reads the files again."""

    certificate: str | None = None  # file with the certificate and those between it and the CA; None: no TLS
    key: str | None = None  # file with the private key; None: it is in the certificate's
    ca: str | None = None  # signs clients' certificates, and the master's; None: the system's, for the master alone
    client_certificates: Literal["none", "optional", "required"] = "none"
    plain_from: tuple[str, ...] = ()  # address ranges whose connections need no TLS, as of genuine clients

    @property
    def is_on(self) -> bool:
        return self.certificate is not None

    @property
    def requires_certificates(self) -> bool:
        """True if a peer without a certificate of the CA's gets nowhere, wherever it is."""
        return self.is_on and self.client_certificates == "required" and not self.plain_from

    def server_context(self) -> ssl.SSLContext:
        """Return the context of the ports, with the files as they are now. Raises InvalidSecurity."""
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        load_certificate(context, self.certificate, self.key)
        if self.ca is not None and self.client_certificates != "none":
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:
                raise InvalidSecurity(f"TLS: the CA file {self.ca} can't be used: {error}") from error
        context.verify_mode = _ASKS[self.client_certificates]
        return context

    def client_config(self) -> TlsConfig | None:
        """Return how a slave connects to its master; None: without TLS."""
        if not self.is_on:
            return None
        return TlsConfig(ca=self.ca, certificate=self.certificate, key=self.key)

    def check(self, where: str) -> None:
        """Raise ConfigError for a value that can't be, unusable files included; *where* names the file."""
        if not self.is_on:
            if self != TlsSection():
                raise ConfigError(f"{where}: tls.certificate is missing: name the file, or remove [tls]")
            return
        if self.client_certificates != "none" and self.ca is None:
            raise ConfigError(f"{where}: tls.client_certificates needs tls.ca, the file of the CA that signs them")
        for text in self.plain_from:
            try:
                parse_range(text)
            except ValueError as error:
                raise ConfigError(f"{where}: tls.plain_from: {error}") from error
        try:
            self.server_context()
            TlsConfig(ca=self.ca, certificate=self.certificate, key=self.key).context()
        except InvalidSecurity as error:
            raise ConfigError(f"{where}: tls: {error}") from error


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

    def check(self, where: str) -> None:
        """Raise ConfigError for a value that can't be; *where* names the file. The rules check themselves."""
        if (self.user is None) != (self.password_file is None):
            raise ConfigError(f"{where}: access.user and access.password_file need each other: give both")
        try:
            self.credentials()
        except InvalidSecurity as error:
            raise ConfigError(f"{where}: access: {error}") from error


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

    def check(self, where: str) -> None:
        """Raise ConfigError for a value that can't be; *where* names the file."""
        if self.port is not None:
            check_range(f"{where}: admin.port", self.port, 0, 65535)
        if reason := why_not_a_host(self.host):
            raise ConfigError(f"{where}: admin.host {reason}")
        try:
            self.token()
        except InvalidSecurity as error:
            raise ConfigError(f"{where}: admin: {error}") from error
