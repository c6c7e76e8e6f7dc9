"""What stops a broker from starting or going on; each says what, where and what to do."""

from meta_client.protocol.errors import MetaError


class BrokerError(MetaError):
    """Base of every error that the broker raises on purpose."""


class ConfigError(BrokerError):
    """The configuration cannot be used. Nothing was started."""


class CannotListen(BrokerError):
    """The address cannot be bound."""
