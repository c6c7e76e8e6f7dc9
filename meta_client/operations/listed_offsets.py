"""Offsets in a file printed by `metaq groups` with --json, to restore a group's position."""

from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from meta_client.protocol.errors import MetaError
from zk.tree.nodes import INT64_MAX, Partition, TopicPartition

LINES_MAX: Final = 1_000_000  # partitions: far more than a group has


class BadList(MetaError):
    """A line of the file was not printed by `metaq groups`. Nothing was changed: correct the line."""


class _Line(msgspec.Struct):
    topic: str
    partition: str
    before: int | UnsetType | None = UNSET  # of a reset: the offset before it
    offset: int | UnsetType | None = UNSET  # of a description: the current offset


_line = msgspec.json.Decoder(_Line)


def read_listed(path: Path) -> dict[TopicPartition, int | None]:
    """Read the offsets in *path*; None where nothing was stored. Raises BadList, OSError."""
    found: dict[TopicPartition, int | None] = {}
    with path.open("rb") as lines:
        for number, text in enumerate(lines, 1):
            try:
                line = _line.decode(text)
                offset = line.offset if line.before is UNSET else line.before
                partition = Partition.maybe_parse(line.partition)
                if partition is None or offset is UNSET or number > LINES_MAX:
                    raise ValueError("it needs topic, partition, and before or offset")
                if offset is not None and not 0 <= offset <= INT64_MAX:
                    raise ValueError(f"{offset} is no offset")
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise BadList(
                    f"{path}, line {number} is not what `metaq groups ... --json` prints ({error})"
                ) from error
            found[line.topic, partition] = offset
    return found
