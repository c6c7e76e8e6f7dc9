"""What can go wrong with a store of offsets beyond what its disk or database raises, by what the caller does next."""

from meta_client.protocol.errors import MetaError


class OffsetStoreError(MetaError):
    """Base of the errors of this package."""


class OffsetsInUse(OffsetStoreError):
    """Another consumer has this directory. Stop it, or give each its own."""


class OffsetsMalformed(OffsetStoreError):
    """What is stored is no offset. Nothing was changed: look at it, mend it by hand, or delete it."""


class NotInTransaction(OffsetStoreError):
    """The connection commits each statement by itself: the offset would be stored without its rows. Fix the code."""


class TakenMeanwhile(OffsetStoreError):
    """Another transaction moved the offset at the same moment. Let the error out: the batch comes again."""


class NoDatabase(OffsetStoreError):
    """What was given can't be used as a database, or the package for it is not installed. Fix the code."""
