"""Offsets in a local file: for a consumer that always runs on this machine, without ZooKeeper."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from journal.wal.storage import DirectoryStorage, Storage
from meta_client.consumer.config import check_group
from meta_client.consumer.offset_stores.errors import OffsetsInUse, OffsetsMalformed
from meta_client.consumer.offsets import OffsetEntry
from meta_client.own_journal import locked
from zk.forks import invalidate_after_fork, skip_after_fork
from zk.tree.nodes import INT64_MAX, INT64_MIN, NO_MESSAGE_ID, Partition

FILE: Final = "offsets.json"


class _Partition(msgspec.Struct, rename="camel"):
    broker_id: int
    partition: int


class _Row(msgspec.Struct, rename="camel"):
    """One partition in the format of the ancestor's file, which is readable here (spec 8.10)."""

    topic: str
    partition: _Partition
    offset: int
    message_id: int = NO_MESSAGE_ID


_Rows = dict[str, list[_Row]]  # by group
_decoder = msgspec.json.Decoder(_Rows)


class LocalOffsetStore:
    """One consumer's offsets in `offsets.json` of a directory, which it locks until it is closed.

    Each commit replaces the whole file atomically: after a crash or a power cut it holds the last commit or the one in
    progress, never a mixture. It may be edited by hand while no store has it open. Call load and commit from one
    thread, as a consumer does; close from any, after the consumer is closed.
    """

    def __init__(self, storage: Storage, group: str) -> None:
        """Read *storage*. For tests; use `open`. Raises OffsetsMalformed, StorageFailed."""
        self.group = check_group(group)
        self._storage = storage
        self._groups = _read(storage)  # other groups' rows in an ancestor's file are kept
        self._offsets = {(row.topic, _partition(row, storage)): row for row in self._groups.get(group, [])}
        self._lock = threading.Lock()  # guards _is_closed, and excludes close() during a commit
        self._is_closed = False

    @classmethod
    def open(cls, directory: Path | str, group: str) -> Self:
        """Open the file in *directory*; both are created if missing.

        Raises OffsetsInUse, OffsetsMalformed (nothing is changed), StorageFailed, InvalidGroup.
        """
        path = Path(directory)
        in_use = f"{path} is in use by another consumer: stop it first, or give this one a directory of its own"
        with locked(path, OffsetsInUse(in_use)) as storage:
            storage.sync_all()  # a commit that was cut short may be readable but not on disk
            opened = cls(storage, group)
        invalidate_after_fork(opened, storage.close)  # a child must not hold the lock when its parent is gone
        return opened

    @classmethod
    def open_for_reading(cls, directory: Path | str, group: str) -> Self:
        """Open the file in *directory* for reading, also while it is locked; commit() is refused. Raises as `open`."""
        opened = cls(DirectoryStorage.open_for_reading(Path(directory)), group)
        opened._is_closed = True
        return opened

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the stored offset; None if there is none."""
        row = self._offsets.get((topic, partition))
        return None if row is None else row.offset

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store *entries*, except those that would go back without being resets. Fsynced on return.

        Raises StorageFailed: the file then holds its old content or all of this; OffsetsInUse once closed.
        """
        changed = {}
        for entry in entries:
            key = entry.topic, entry.partition
            stored = self._offsets.get(key)
            if stored is None or entry.is_reset or entry.offset > stored.offset:
                place = _Partition(entry.partition.broker_id, entry.partition.number)
                changed[key] = _Row(entry.topic, place, entry.offset, entry.message_id)
        if not changed:
            return
        offsets = self._offsets | changed
        rows = [offsets[key] for key in sorted(offsets)]
        groups = self._groups | {self.group: rows}
        with self._lock:
            if self._is_closed:
                raise OffsetsInUse(f"{self._storage.path}: the store is closed, or was opened for reading: open it")
            self._storage.replace(FILE, msgspec.json.format(msgspec.json.encode(groups), indent=1) + b"\n")
        self._groups, self._offsets = groups, offsets

    def close(self) -> None:
        """Unlock the directory, once the consumer is closed. Idempotent."""
        with self._lock:
            if not self._is_closed and isinstance(self._storage, DirectoryStorage):
                self._storage.close()
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    @skip_after_fork
    def __exit__(self, *_: object) -> None:
        self.close()


def _read(storage: Storage) -> _Rows:
    if FILE not in storage.names():
        return {}
    try:
        return _decoder.decode(storage.read(FILE))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OffsetsMalformed(
            f"{storage.path}{os.sep}{FILE} holds no offsets ({error}): nothing was changed; mend the file, or delete "
            "it to start over"
        ) from error


def _partition(row: _Row, storage: Storage) -> Partition:
    name = f"{row.partition.broker_id}-{row.partition.partition}"
    partition = Partition.maybe_parse(name)
    if partition is None or not 0 <= row.offset <= INT64_MAX or not INT64_MIN <= row.message_id <= INT64_MAX:
        raise OffsetsMalformed(
            f"{storage.path}{os.sep}{FILE} says that {row.topic!r}/{name} is at {row.offset}, which can't be: nothing "
            "was changed; mend the file, or delete it to start over"
        )
    return partition
