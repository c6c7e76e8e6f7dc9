"""Reads from a query's checkpoint what Spark has planned as a batch.

Spark writes the sources' offsets of a batch before its first task, and keeps them when it repeats the batch. A restored
or copied checkpoint plans another batch under the same number: at least its time differs.
"""

import hashlib
from urllib.parse import unquote, urlsplit

from journal.archive.places import archive_place
from journal.errors import StorageFailed
from meta_client.batches.decision import SinkFailed


def plan_digest(checkpoint: str, batch: int) -> str:
    """Return the SHA-256 of the plan of *batch*. *checkpoint*: the query's location, a directory or a URL. Raises
    SinkFailed if it can't be read."""
    name = f"offsets/{batch}"
    path = unquote(urlsplit(checkpoint).path) if checkpoint.startswith("file:") else checkpoint
    try:
        plan = archive_place(path).read(name)
    except StorageFailed as error:
        raise SinkFailed(f"the plan of batch {batch} can't be read: {error}") from error
    if plan is None:
        raise SinkFailed(
            f"there is no {name} in checkpointLocation {checkpoint}: give the directory, or its whole URL, as this "
            f"Python finds it; without the plan a batch of a restored checkpoint is not told from a repeated one"
        )
    return hashlib.sha256(plan).hexdigest()
