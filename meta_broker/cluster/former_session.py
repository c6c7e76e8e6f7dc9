"""Ends the ZooKeeper session that a killed broker left in a data directory, and leaves this one's to a successor."""

import logging
import threading
from pathlib import Path

from journal.errors import StorageFailed
from meta_broker.cluster.session_file import SessionFile
from zk.errors import ZooKeeperError
from zk.session.former_session import end_session
from zk.session.security import ZooKeeperSecurity
from zk.session.session import ZooKeeperSession

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
