"""What can go wrong with a store of refused messages, by what the caller does next."""

from meta_client.protocol.errors import MetaError


class StoreInUse(MetaError):
    """Another consumer holds the directory. Stop that one, or give this one its own."""


class ForeignStore(MetaError):
    """The directory holds something else: a broker's journal, or another group's messages. Name another one."""


class StoreFull(MetaError):
    """No room for another refused message: let some be taken, resend or drop them, or allow more bytes."""
