"""Listening beyond this machine: only with authentication, or when the operator says that it is insecure. Pure."""

from collections.abc import Iterator

from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import ConfigError
from meta_client.admin.host import is_loopback


def check_exposure(config: BrokerConfig, where: str) -> None:
    """Raise ConfigError for a port that anybody who reaches this machine could use; *where* names the file."""
    if not config.broker.insecure:
        for key, remedy in _open_ports(config):
            raise ConfigError(
                f"{where}: {key} is not loopback, and nobody who connects has to say who he is: {remedy}, or set "
                f"broker.insecure = true where something else decides who may connect"
            )


def exposure_warnings(config: BrokerConfig) -> list[str]:
    """Return the warnings of each start."""
    found = [
        f"INSECURE: {key} is not loopback, and everybody who reaches it may do everything"
        for key, _ in _open_ports(config)
    ]
    if not is_loopback(config.broker.host) and not config.tls.is_on:
        found.append(f"no TLS: anybody between the clients and {config.broker.host} can read and change everything")
    return found


def _open_ports(config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """Yield key and remedy of each port that is open to everybody."""
    if not is_loopback(config.broker.host) and not config.authenticates:
        yield f"broker.host {config.broker.host}", "name principals with [access] file"
    admin = config.admin
    is_guarded = config.tls.requires_certificates or (config.tls.is_on and admin.token_file is not None)
    if admin.port is not None and not is_loopback(admin.host) and not is_guarded:
        yield f"admin.host {admin.host}", "name a token_file in [admin], with a certificate in [tls]"
