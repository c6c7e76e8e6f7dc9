"""Offsets in a file of this machine: for a consumer that always runs here, and has no ZooKeeper to spare."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from journal.errors import DirectoryInUse
from journal.storage import DirectoryStorage, Storage
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry
from meta_client.offset_stores.errors import OffsetsInUse, OffsetsMalformed
from zk.nodes import INT64_MAX, INT64_MIN, NO_MESSAGE_ID, Partition

FILE: Final = "offsets.json"


class _Partition(msgspec.Struct, rename="camel"):
    broker_id: int
    partition: int


class _Row(msgspec.Struct, rename="camel"):
    """One partition as the ancestor's file has it, which is read as well (spec 8.10)."""

    topic: str
    partition: _Partition
    offset: int
    message_id: int = NO_MESSAGE_ID


_Rows = dict[str, list[_Row]]  # by group
_decoder = msgspec.json.Decoder(_Rows)


class LocalOffsetStore:
    """One consumer's offsets in `offsets.json` of a directory, which it holds alone until it is closed.

    The file is rewritten whole at each commit, and replaced in one step: after a crash or a power cut it holds what
    the last commit or the one under way had stored, never a mixture. People can read it, and change it while nobody
    has it open. Load and commit from one thread, as a consumer does; close from any, after the consumer.
    """

    def __init__(self, storage: Storage, group: str) -> None:
        """For tests; use `open`. Raises OffsetsMalformed, StorageFailed."""
        self.group = check_group(group)
        self._storage = storage
        self._groups = _read(storage)  # other groups' too: what an ancestor's file holds of them is kept
        self._offsets = {(row.topic, _partition(row, storage)): row for row in self._groups.get(group, [])}
        self._lock = threading.Lock()  # guards _is_closed, and keeps close() from coming in the middle of a commit
        self._is_closed = False

    @classmethod
    def open(cls, directory: Path | str, group: str) -> Self:
        """Read the file in *directory*, which is made if need be, or begin with none.

        Raises OffsetsInUse, OffsetsMalformed (nothing was changed), StorageFailed, InvalidGroup.
        """
        path = Path(directory)
        try:
            storage = DirectoryStorage.open_for_writing(path)
        except DirectoryInUse as error:
            raise OffsetsInUse(
                f"{path} is in use by another consumer: stop it first, or give this one a directory of its own"
            ) from error
        try:
            storage.sync_all()  # of a commit that was cut short the file may show more than the disk has
            return cls(storage, group)
        except BaseException:
            storage.close()
            raise

    @classmethod
    def open_for_reading(cls, directory: Path | str, group: str) -> Self:
        """Look at what the file in *directory* holds, whoever has it open; commit() is refused. Raises as `open`."""
        opened = cls(DirectoryStorage.open_for_reading(Path(directory)), group)
        opened._is_closed = True
        return opened

    def load(self, topic: str, partition: Partition) -> int | None:
        """Where to go on; None if nothing is stored."""
        row = self._offsets.get((topic, partition))
        return None if row is None else row.offset

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store *entries*, but for those that would go back without being resets. Fsynced on return.

        Raises StorageFailed: then the file holds either what it held or all of this; OffsetsInUse once closed.
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
        """Let go of the directory, once the consumer is closed. Idempotent."""
        with self._lock:
            if not self._is_closed and isinstance(self._storage, DirectoryStorage):
                self._storage.close()
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(storage: Storage) -> _Rows:
    if FILE not in storage.names():
        return {}
    try:
        return _decoder.decode(storage.read(FILE))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OffsetsMalformed(
            f"{storage.path}{os.sep}{FILE} holds no offsets ({error}): nothing was changed; mend the file, or delete "
            "it to begin anew"
        ) from error


def _partition(row: _Row, storage: Storage) -> Partition:
    name = f"{row.partition.broker_id}-{row.partition.partition}"
    partition = Partition.maybe_parse(name)
    if partition is None or not 0 <= row.offset <= INT64_MAX or not INT64_MIN <= row.message_id <= INT64_MAX:
        raise OffsetsMalformed(
            f"{storage.path}{os.sep}{FILE} says that {row.topic!r}/{name} is at {row.offset}, which can't be: nothing "
            "was changed; mend the file, or delete it to begin anew"
        )
    return partition
