"""`[tls]`: the broker's certificate, and who may connect without TLS."""

import ssl
from typing import Final, Literal

import msgspec

from meta_broker.access.addresses import parse_range
from meta_broker.errors import ConfigError
from meta_client.errors import InvalidSecurity
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


def check_tls(section: TlsSection, where: str) -> None:
    """Raise ConfigError for a value of *section* that can't be, unusable files included; *where* names the file."""
    if not section.is_on:
        if section != TlsSection():
            raise ConfigError(f"{where}: tls.certificate is missing: name the file, or remove [tls]")
        return
    if section.client_certificates != "none" and section.ca is None:
        raise ConfigError(f"{where}: tls.client_certificates needs tls.ca, the file of the CA that signs them")
    for text in section.plain_from:
        try:
            parse_range(text)
        except ValueError as error:
            raise ConfigError(f"{where}: tls.plain_from: {error}") from error
    try:
        section.server_context()
        TlsConfig(ca=section.ca, certificate=section.certificate, key=section.key).context()
    except InvalidSecurity as error:
        raise ConfigError(f"{where}: tls: {error}") from error
