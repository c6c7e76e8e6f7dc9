"""Errors of a journal, one class for each thing a caller or operator can do about them."""

from os import PathLike


class JournalError(Exception):
    """Base of every error of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        """Let another process have it: without its constructor, which takes other arguments than its text."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class StorageFailed(JournalError):
    """A write or fsync failed. The journal has stopped for good; restart the process once the disk is well."""

    @property
    def errno(self) -> int | None:
        """The errno of the OSError that caused this; None without one."""
        cause = self.__cause__
        return cause.errno if isinstance(cause, OSError | StorageFailed) else None


class UnreadableRange(StorageFailed):
    """The disk cannot read bytes [position, position + size) of the file *path*. The rest may be readable."""

    def __init__(self, path: str | PathLike[str], position: int, size: int, reason: str) -> None:
        super().__init__(f"{path}: bytes {position} to {position + size} cannot be read: {reason}")
        self.path = path
        self.position = position
        self.size = size
        self.reason = reason

    @property
    def end(self) -> int:
        return self.position + self.size


class InvalidContent(JournalError):
    """Bytes are not what they should be, a checkpoint or a header; the text says why."""


class JournalClosed(JournalError):
    """The journal was closed; nothing can be appended any more."""


class NoJournal(JournalError):
    """The directory holds no journal. Name the data directory of a broker."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        super().__init__(f"{directory} holds no journal: name the data directory of a broker")


class ForeignJournal(JournalError):
    """The directory belongs to another broker or cluster, or to a newer metaq. Nothing was touched."""


class DirectoryInUse(JournalError):
    """Another process holds the directory. Stop it, or name another directory."""


class DirectoryOfAnother(JournalError):
    """The directory belongs to another user than root, who runs this: its owner could not read what root writes there.
    Run it as the owner. Nothing was touched."""


class CorruptJournal(JournalError):
    """Bytes that were once fsynced do not read back. Nothing was touched; see `metaq journal check` and `repair`.

    *lsn*: the first bad byte. *next_valid_lsn*: the next whole record, None if there is none.
    """

    def __init__(self, lsn: int, next_valid_lsn: int | None, reason: str, path: str) -> None:
        until = "the end of the journal" if next_valid_lsn is None else f"LSN {next_valid_lsn}"
        super().__init__(
            f"{path}: the journal is corrupt at LSN {lsn} ({reason}): acknowledged bytes from there to {until} "
            f"do not read back; nothing was changed: keep a copy and run `metaq journal check`, then `repair`"
        )
        self.lsn = lsn
        self.next_valid_lsn = next_valid_lsn
        self.reason = reason


class NotRepairable(JournalError):
    """A repair is impossible with the given directories. Nothing was changed."""


class ForeignStream(JournalError):
    """Received bytes do not continue the copy. Nothing of that record was kept: close the connection, and restart the
    stream at the end of the copy.

    *is_final*: its bytes are whole and contradict earlier records. The copy accepts nothing more until it is reopened.
    """

    def __init__(self, lsn: int, reason: str, *, is_final: bool = False) -> None:
        super().__init__(f"LSN {lsn} of the stream does not continue the journal here: {reason}")
        self.lsn = lsn
        self.is_final = is_final


class SyncSuperseded(ForeignStream):
    """The initial sync began with a checkpoint of a former master that the present master never had in full. Restart
    the initial sync: the directory is no journal yet, so nothing is lost."""

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(lsn, reason, is_final=True)


class TruncationTooDeep(JournalError):
    """The rest after a truncation could not be opened. Nothing was changed: empty the directory, and restart the
    initial sync."""


class UnfinishedSync(JournalError):
    """The directory holds an unfinished initial sync, and is no journal yet. Start it as a slave until that is
    complete."""


class DirectoryIsBackup(JournalError):
    """The directory is a back-up, or an unfinished one, or an unfinished restoration. Nothing was changed."""


class DirectoryIsReplica(JournalError):
    """The journal is a slave's copy: only its master may append to it. Nothing was changed."""


class ClockWrong(JournalError):
    """The wall clock is beyond what message ids hold: a record of that time would leave none for later messages."""


class RecordTooLarge(JournalError):
    """A record does not fit into a segment. Raise segment_bytes or send less at a time."""


class InvalidRecord(JournalError):
    """A record has valid checksums but impossible content: written by a newer or a broken metaq."""


class ContradictoryRecord(InvalidRecord):
    """A record reads, and contradicts those before it. The state may have part of it, and is of no more use."""
