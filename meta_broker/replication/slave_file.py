"""`slave.json`: that a directory is a slave's, and what it last heard from its master. What a promotion goes by.

As long as the file is there, the directory holds a copy, and no master starts on it.
"""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from journal.errors import StorageFailed
from journal.moving import sync_directory
from journal.offline import COPY_FILE
from meta_broker.errors import ConfigError, with_remedy

FILE_NAME: Final = COPY_FILE
_BYTES_MAX = 16 * 1024  # the file has some 300

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class SlaveFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who a slave is, and what its master last told it. Zeros and blanks: it has not heard from one yet.

    *end* and *fence* are LSNs: where the master's journal ended, and below which everything was acknowledged, when it
    said so at *heard_ms*, milliseconds since 1970. *in_sync*: did the master count on this slave then?
    """

    cluster: Text
    broker_id: Natural
    slave_id: Natural
    master: Text = ""
    epoch: Natural = 0
    end: Natural = 0
    fence: Natural = 0
    heard_ms: Natural = 0
    in_sync: bool = False
    mode: Literal["async", "sync"] = "async"


class SlaveFile:
    """The file of one data directory. Call it while the directory's lock is held, or only to look; from one thread at
    a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / FILE_NAME

    def read(self) -> SlaveFacts | None:
        """What it says; None where there is none: the directory is no slave's. Raises ConfigError, StorageFailed."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
            if len(data) > _BYTES_MAX:
                raise ValueError(f"more than {_BYTES_MAX} bytes")
            return msgspec.json.decode(data, type=SlaveFacts)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(with_remedy(f"{self._directory}: {error.strerror}", error.errno)) from error
        except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
            raise ConfigError(
                f"{self.path}: not what a slave writes ({error}): replace it by one line, "
                f'{{"cluster":"NAME","broker_id":ID,"slave_id":N}}, and start the slave, which writes the rest'
            ) from error

    def write(self, facts: SlaveFacts) -> None:
        """Make the file say *facts*: all of it, or after a crash what it said before. Durable on return.

        Raises StorageFailed.
        """
        temporary = self.path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(facts) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.path)
            sync_directory(self._directory)
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from error

    def remove(self) -> None:
        """The directory is no slave's any more; durable on return. Nothing happens where there is none.

        Raises StorageFailed.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            sync_directory(self._directory)
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from error
