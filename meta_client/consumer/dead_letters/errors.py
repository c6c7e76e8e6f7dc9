"""Errors of a dead-letter store, by what the caller does next."""

from meta_client.protocol.errors import MetaError


class StoreInUse(MetaError):
    """Another consumer holds the directory. Stop it, or give this one its own."""


class ForeignStore(MetaError):
    """The directory holds a broker's journal, or another group's messages. Name another one."""


class StoreFull(MetaError):
    """No room for another dead letter. Have some delivered, resend or drop them, or allow more bytes."""
