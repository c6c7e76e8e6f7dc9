"""Error that ends a link."""

from meta_broker.errors import BrokerError


class LinkRefused(BrokerError):
    """The two sides of a link do not belong together, or one broke the protocol. Close the link; the text says why."""
