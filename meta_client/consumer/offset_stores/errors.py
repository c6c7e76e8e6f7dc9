"""Errors of an offset store, beside those of its disk or database, by what the caller does next. Stands alone: every
store raises them."""

from meta_client.protocol.errors import MetaError


class OffsetStoreError(MetaError):
    """Base of the errors of this package."""


class OffsetsInUse(OffsetStoreError):
    """Another consumer holds this directory. Stop it, or give each its own."""


class OffsetsMalformed(OffsetStoreError):
    """The stored value is no offset. Nothing was changed: examine it, repair it by hand, or delete it."""


class TakenMeanwhile(OffsetStoreError):
    """Another transaction moved the offset at the same moment. Let the error propagate: the batch is delivered
    again."""
