"""The tail that a master lost and a slave in sync has: kept aside until it is whole and the journal is closed.

A file without a name: whatever ends this process, nothing is left of it, and it is fetched again.
"""

import tempfile
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.errors import StorageFailed
from journal.frame import Lsn
from journal.lives import Life

COUNT_AS: Final = "I"  # of the bytes of a piece


class LostTail(NamedTuple):
    """Bytes [parting, end) of the journal, whole, as slave *slave_id* had them.

    *dropped*: lives of the master's that go for them: nothing was acknowledged in those.
    """

    parting: Lsn
    end: Lsn
    slave_id: int
    pieces: "TailFile"
    dropped: frozenset[Life] = frozenset()


class TailFile:
    """Pieces of the journal, one behind the other; none crosses a segment's end."""

    def __init__(self, directory: str, parting: Lsn) -> None:
        """Raises StorageFailed."""
        self.parting = parting
        self.end = parting
        self._directory = directory
        self._sizes = array(COUNT_AS)
        try:
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed once it is in the journal)
        except OSError as error:
            raise self._failed(error) from error

    def add(self, data: bytes | memoryview) -> None:
        """Keep what follows at `end`. Raises StorageFailed."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._sizes.append(len(data))
        self.end = Lsn(self.end + len(data))

    def read(self) -> Iterator[tuple[Lsn, bytes]]:
        """All of it, in order. Raises StorageFailed."""
        lsn = self.parting
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
