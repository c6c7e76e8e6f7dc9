"""The tail a master lost and an in-sync slave still has: kept in a file until it is complete and the journal is
closed.

The file is unnamed: it vanishes when the process ends, and the tail is fetched again.
"""

import tempfile
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.errors import StorageFailed
from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn

COUNT_AS: Final = "I"  # array type of the pieces' sizes


class LostTail(NamedTuple):
    """Bytes [divergence_lsn, end) of the journal, complete, as slave *slave_id* had them.

    *dropped*: epochs of the master that the tail replaces: nothing was acknowledged in them.
    """

    divergence_lsn: Lsn
    end: Lsn
    slave_id: int
    pieces: "TailFile"
    dropped: frozenset[WriterEpoch] = frozenset()


class TailFile:
    """Consecutive pieces of the journal; none crosses the end of a segment."""

    def __init__(self, directory: str, divergence_lsn: Lsn) -> None:
        """Create the file in *directory*; the first piece begins at *divergence_lsn*. Raises StorageFailed."""
        self.divergence_lsn = divergence_lsn
        self.end = divergence_lsn
        self._directory = directory
        self._sizes = array(COUNT_AS)
        try:
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed once it is in the journal)
        except OSError as error:
            raise self._failed(error) from error

    def add(self, data: bytes | memoryview) -> None:
        """Append *data* at `end`. Raises StorageFailed."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._sizes.append(len(data))
        self.end = Lsn(self.end + len(data))

    def read(self) -> Iterator[tuple[Lsn, bytes]]:
        """Yield every piece with its LSN, in order. Raises StorageFailed."""
        lsn = self.divergence_lsn
        try:
            self._file.seek(0)
            for size in self._sizes:
                yield lsn, self._file.read(size)
                lsn = Lsn(lsn + size)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> StorageFailed:
        return StorageFailed(f"{self._directory}, a file for what this master lost: {error.strerror}")
