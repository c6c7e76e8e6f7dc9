"""`slave.json`: marks a directory as a slave's, and keeps its master's last heartbeat, which a promotion is checked
against.

While the file exists, the directory holds a copy, and no master starts on it.
"""

import contextlib
from pathlib import Path
from typing import Final, Literal

import msgspec

from journal.errors import StorageFailed
from journal.records.header import Natural
from journal.repair.offline import REPLICA_FILE
from journal.wal.file_move import replace, sync_directory
from journal.wal.storage_file import translated
from meta_broker.errors import ConfigError, with_remedy
from meta_broker.replication.link_protocol import LinkText

FILE_NAME: Final = REPLICA_FILE
_BYTES_MAX = 16 * 1024  # usually some 300


class SlaveFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A slave's identity and its master's last heartbeat. Zeros and blanks: none has arrived yet.

    *end* and *high_watermark* are LSNs: the end of the master's journal, and the LSN below which everything was
    acknowledged, as received at *heard_ms*, milliseconds since 1970. *in_sync*: whether this slave was in sync then.
    """

    cluster: LinkText
    broker_id: Natural
    slave_id: Natural
    master: LinkText = ""
    epoch: Natural = 0
    end: Natural = 0
    high_watermark: Natural = msgspec.field(default=0, name="fence")
    heard_ms: Natural = 0
    in_sync: bool = False
    mode: Literal["async", "sync"] = "async"


class SlaveFile:
    """The slave file of one data directory. Hold the directory's lock to change it; one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / FILE_NAME

    def read(self) -> SlaveFacts | None:
        """Read the file; None: there is none, the directory is not a slave's. Raises ConfigError, StorageFailed."""
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
        """Replace the file atomically. Durable on return. Raises StorageFailed."""
        with translated(self.path):
            replace(self.path, msgspec.json.encode(facts) + b"\n")

    def remove(self) -> None:
        """Delete the file, if there is one: the directory is no slave's any more. Durable on return. Raises
        StorageFailed.
        """
        with translated(self.path):
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            sync_directory(self._directory)
