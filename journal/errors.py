"""What can go wrong with a journal, by what the reader of the message has to do."""

from os import PathLike


class JournalError(Exception):
    """Base of every error of this package."""


class StorageFailed(JournalError):
    """A write or fsync failed. The journal has stopped for good; restart the process once the disk is well."""

    @property
    def errno(self) -> int | None:
        """The errno of the OSError that this was raised from; None if it was none."""
        cause = self.__cause__
        return cause.errno if isinstance(cause, OSError | StorageFailed) else None


class UnreadableRange(StorageFailed):
    """The disk does not give back bytes [position, position + size) of the file *path*. The rest of it may read."""

    def __init__(self, path: str | PathLike[str], position: int, size: int, reason: str) -> None:
        super().__init__(f"{path}: bytes {position} to {position + size} cannot be read: {reason}")
        self.path = path
        self.position = position
        self.size = size
        self.reason = reason

    @property
    def end(self) -> int:
        return self.position + self.size


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


class RottenJournal(JournalError):
    """Bytes that were once fsynced no longer read back. Nothing was touched; see `metaq journal check` and `repair`.

    *lsn* is the first bad byte, *resumes* the next record that is whole (None when there is none).
    """

    def __init__(self, lsn: int, resumes: int | None, reason: str, path: str) -> None:
        until = "the end of the journal" if resumes is None else f"LSN {resumes}"
        super().__init__(
            f"{path}: the journal is rotten at LSN {lsn} ({reason}): acknowledged bytes from there to {until} "
            f"do not read back; nothing was changed: keep a copy and run `metaq journal check`, then `repair`"
        )
        self.lsn = lsn
        self.resumes = resumes
        self.reason = reason


class NotRepairable(JournalError):
    """A repair cannot be done with what there is. Nothing was changed."""


class ForeignStream(JournalError):
    """What was received does not continue the copy. Nothing of that record was kept: close the connection, and let the
    stream begin again where the copy ends.

    *is_final*: its bytes are whole and contradict what came before. The copy takes nothing more, until it is opened
    again.
    """

    def __init__(self, lsn: int, reason: str, *, is_final: bool = False) -> None:
        super().__init__(f"LSN {lsn} of the stream does not continue the journal here: {reason}")
        self.lsn = lsn
        self.is_final = is_final


class CopySuperseded(ForeignStream):
    """The copy was begun with a checkpoint of a former master, and whoever is master now never had all that it holds.
    Begin it anew: it is no journal yet, and loses nothing by that."""

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(lsn, reason, is_final=True)


class CutTooDeep(JournalError):
    """What a cut would leave could not be opened. Nothing was changed: empty the directory, and begin the copy anew."""


class UnfinishedCopy(JournalError):
    """The directory holds the beginning of a copy, and is no journal yet. Start it as a slave until it is whole."""


class DirectoryIsCopy(JournalError):
    """The journal is a slave's copy: nobody but its master adds to it. Nothing was changed."""


class RecordTooLarge(JournalError):
    """A record does not fit into a segment. Raise segment_bytes or send less at a time."""


class InvalidRecord(JournalError):
    """A record passed its checksums but says something impossible: written by a newer or a broken metaq."""
