"""Reads from a query's checkpoint what Spark has planned as a batch.

Spark writes the sources' offsets of a batch before its first task, and keeps them when it repeats the batch. A restored
or copied checkpoint plans another batch under the same number: at least its time differs.
"""

import hashlib
import posixpath
import re
from typing import Final

import msgspec

from journal.archive.places import archive_place
from journal.errors import StorageFailed
from meta_client.batches.decision import SinkFailed
from meta_client.batches.names import BatchName

_QUERY: Final = "metadata"
_LOCATION: Final = re.compile(r"(?:([^/:]+):)?(?://([^/]*))?(.*)", re.DOTALL)


class _Metadata(msgspec.Struct):
    id: str


def plan_digest(checkpoint: str, batch: BatchName) -> str:
    """Return the SHA-256 of the plan of *batch*, named as Spark does. *checkpoint*: the query's location, a directory
    or a URL. Raises SinkFailed if it can't be read, or is of another query."""
    data = _read(checkpoint, _QUERY, batch)
    try:
        owner = msgspec.json.decode(data, type=_Metadata).id
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise SinkFailed(f"{checkpoint}/{_QUERY} names no query: {error}: start with a new checkpoint") from error
    if owner != batch.query:
        raise SinkFailed(
            f"checkpointLocation {checkpoint} is of query {owner}, as this Python finds it, and the batch of query "
            f"{batch.query}: give the location that this query has, as its whole URL"
        )
    return hashlib.sha256(_read(checkpoint, f"offsets/{batch.batch}", batch)).hexdigest()


def python_place(checkpoint: str) -> str:
    """Return the directory or URL that Hadoop, and so Spark, means by *checkpoint*: nothing in it is escaped, and `..`
    takes away the name before it, even that of a link."""
    match = _LOCATION.fullmatch(checkpoint)
    assert match is not None, "it matches any text"
    scheme, authority, path = match.groups()
    if scheme is None or scheme.lower() == "file":
        return posixpath.normpath(path)
    return f"{scheme}://{authority or ''}{posixpath.normpath(path) if path else ''}"


def _read(checkpoint: str, name: str, batch: BatchName) -> bytes:
    try:
        data = archive_place(python_place(checkpoint)).read(name)
    except StorageFailed as error:
        reason = str(error).partition("\n")[0]  # of libhdfs: every place where it has looked
        raise SinkFailed(f"the plan of batch {batch.batch} can't be read: {reason}: {_remedy(checkpoint)}") from error
    if data is None:
        raise SinkFailed(
            f"there is no {name} in checkpointLocation {checkpoint}: give the directory, or its whole URL, as this "
            f"Python finds it; without the plan a batch of a restored checkpoint is not told from a repeated one"
        )
    return data


def _remedy(checkpoint: str) -> str:
    if checkpoint.startswith("hdfs:"):
        return "name it by option checkpointUrl, too, as webhdfs://USER@NAMENODE:9870/path"
    return "an object store's driver takes its credentials from the environment of Spark's driver"
