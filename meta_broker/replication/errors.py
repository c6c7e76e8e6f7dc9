"""What ends a link."""

from meta_broker.errors import BrokerError


class LinkRefused(BrokerError):
    """The two sides of a link do not belong together, or one of them breaks its rules. Close it; the text says why."""
