"""Ends the ZooKeeper session that a killed broker left in a data directory, and leaves this one's to a successor.

The file `zookeeper-session` has it. The holder of the directory's lock knows that the session's process is dead. A copy
of the directory must not end the original's session: the file names its directory, and is void elsewhere and after a
reboot.
"""

import contextlib
import logging
import re
import threading
from pathlib import Path

import msgspec

from journal.errors import StorageFailed
from journal.wal.file_move import replace
from zk.errors import ZooKeeperError
from zk.session.former_session import end_session
from zk.session.security import PASSWORD_BYTES, SessionCredentials, ZooKeeperSecurity
from zk.session.session import ZooKeeperSession

FILE_NAME = "zookeeper-session"
_BYTES_MAX = 4096  # usually some 150
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_HEXADECIMAL = re.compile(rf"[0-9a-f]{{{2 * PASSWORD_BYTES}}}")


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: int
    password: str  # hexadecimal
    place: str


class SessionFile:
    """The file of one data directory. Call it while the directory's lock is held; one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE_NAME

    def read(self) -> SessionCredentials | None:
        """Return the last holder's session; None: it left none, or none that is certainly this directory's."""
        try:
            with self._path.open("rb") as file:
                content = msgspec.json.decode(file.read(_BYTES_MAX), type=_Content)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None  # damaged or missing: a restart only waits for the old session to expire
        if content.place != self._place() or not _HEXADECIMAL.fullmatch(content.password):
            return None
        if not -(2**63) <= content.session_id < 2**63:
            return None
        return SessionCredentials(content.session_id, bytes.fromhex(content.password))

    def write(self, credentials: SessionCredentials) -> None:
        """Save this session, readable by the owner alone. Durable on return. Raises StorageFailed."""
        if (place := self._place()) is None:
            return  # no boot id: a successor waits for the session to expire
        content = _Content(session_id=credentials.session_id, password=credentials.password.hex(), place=place)
        try:
            replace(self._path, msgspec.json.encode(content) + b"\n", mode=0o600)
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error.strerror}: a restart will wait for the old session") from error

    def remove(self) -> None:
        """Delete the file, if there is one: the session is over."""
        with contextlib.suppress(OSError):  # a leftover file is harmless: its session is over
            self._path.unlink()

    def _place(self) -> str | None:
        """Identify this directory on this machine since its boot; None: unknown."""
        try:
            status = self._directory.stat()
            return f"{status.st_dev}:{status.st_ino}:{_BOOT_ID.read_text().strip()}"
        except OSError:
            return None


log = logging.getLogger(__name__)


class FormerSession:
    """The former session of *directory*, at the servers of *connect*. Call it while the directory's lock is held."""

    def __init__(self, directory: Path, connect: str, security: ZooKeeperSecurity) -> None:
        self._file = SessionFile(directory)
        self._connect = connect
        self._security = security
        self._ending: threading.Thread | None = None

    @property
    def session_id(self) -> int | None:
        """Id of the session that the directory names; None: none that is certainly its own."""
        former = self._file.read()
        return None if former is None else former.session_id

    def begin_ending(self) -> None:
        """Begin to end it. Returns at once; idempotent."""
        if self._ending is None:
            self._ending = threading.Thread(target=self._end_saved, name="former-session", daemon=True)
            self._ending.start()

    def end_session(self) -> None:
        """End it, or finish what `begin_ending` began. Blocks."""
        self.begin_ending()
        assert self._ending is not None
        self._ending.join()

    def save(self, session: ZooKeeperSession) -> None:
        """Save *session*, for a successor to end."""
        try:
            self._file.write(session.credentials)
        except StorageFailed as error:
            log.warning("session not saved error=%s", error)

    def delete(self) -> None:
        """Delete what was saved: the session is over."""
        self._file.remove()

    def _end_saved(self) -> None:
        if (former := self._file.read()) is not None:
            try:
                was_alive = end_session(self._connect, former, security=self._security)
                log.info("former session ended id=%#x was_alive=%s", former.session_id & (2**64 - 1), was_alive)
            except ZooKeeperError as error:
                log.warning("former session not ended, waiting for its expiry error=%s", error)
