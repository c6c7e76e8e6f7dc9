"""`cluster-id`: the cluster that a data directory belongs to, compared with the one that ZooKeeper names.

A directory takes ZooKeeper's cluster at its first start, and the first broker of all makes its id. From then on only
`metaq adopt` changes either: another cluster's brokers, groups and decisions are not this one's.
"""

import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from journal.errors import StorageFailed
from journal.wal.storage import Storage
from meta_broker.errors import ConfigError, with_remedy
from zk.brokers.cluster_id import CLUSTER_ID_PATTERN, name_cluster, new_cluster_id, read_cluster_id
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session.session import ZooKeeperSession
from zk.tree.paths import ClusterKey

log = logging.getLogger(__name__)

FILE_NAME: Final = "cluster-id"
_BYTES_MAX: Final = 64  # 37 of an id and its line's end


class OtherCluster(ZooKeeperError):
    """ZooKeeper is of another cluster than the directory, or lost its data. Correct which ZooKeeper it is; or adopt
    the directory."""


def read_cluster_file(directory: Path) -> str | None:
    """Return the cluster of *directory*; None: it has none yet. Raises ConfigError, StorageFailed."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).decode(errors="replace").removesuffix("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(with_remedy(f"{path}: {error.strerror}", error.errno)) from error
    if not re.search(CLUSTER_ID_PATTERN, text):
        raise ConfigError(
            f"{path}: {text!r} is no cluster's id: make sure that this is the cluster's ZooKeeper, then delete the "
            f"file, and the start writes it again"
        )
    return text


def save_cluster_file(storage: Storage, cluster_id: str) -> None:
    """Write the cluster into a directory that is locked. Durable on return. Raises StorageFailed."""
    storage.replace(FILE_NAME, f"{cluster_id}\n".encode())


def check_cluster(session: ZooKeeperSession, directory: Path, own: str | None) -> str | None:
    """Return the cluster that ZooKeeper names. Changes nothing. Raises OtherCluster if it is not *own*, the
    directory's; ZooKeeperError."""
    found = read_cluster_id(session)
    if own is not None and own != found:
        raise _other_cluster(session, directory, own, found)
    return found


def _other_cluster(session: ZooKeeperSession, directory: Path, own: str, found: str | None) -> OtherCluster:
    where = f"ZooKeeper at {session.connect}"
    path = session.paths.of(ClusterKey())
    named = f"{where} is of cluster {found}" if found else f"{where} has no {path}: it is another one, or lost its data"
    return OtherCluster(
        f"{directory} is of cluster {own}, and {named}: correct --zk; or, if this ZooKeeper is the cluster's from now "
        f"on, run `metaq adopt {directory} --zk {session.connect}`, with the broker's --config"
    )


class ClusterIdentity:
    """The cluster of a running broker. Blocks; one thread at a time. *id*: any thread."""

    def __init__(
        self, session: ZooKeeperSession, directory: Path, insist: Callable[[str, Callable[[], Any]], Any]
    ) -> None:
        """*insist* repeats a request, which it names, while ZooKeeper is away."""
        self.id: str | None = None  # until it is known
        self._session = session
        self._directory = directory
        self._insist = insist
        self._own: str | None = None  # as the directory has it

    def check(self) -> bool:
        """Compare the directory's cluster with ZooKeeper's, before anything is changed. False: it was told to stop
        meanwhile. Raises OtherCluster, ConfigError, StorageFailed, ZooKeeperError."""
        self._own = read_cluster_file(self._directory)
        try:
            asks = partial(check_cluster, self._session, self._directory, self._own)
            self.id = self._insist("reading the cluster's id", asks)
        except ZooKeeperUnavailable:
            return False
        return True

    def join(self, storage: Storage) -> bool:
        """Save the cluster in the directory, which is open, and make its id if nobody has. False: it was told to stop
        meanwhile. Raises ZooKeeperError."""
        if self._own is not None:
            return True
        try:
            naming = partial(name_cluster, self._session, self.id or new_cluster_id())
            named: str = self._insist("naming the cluster", naming)
        except ZooKeeperUnavailable:
            return False
        self.id = named
        try:
            save_cluster_file(storage, named)
        except StorageFailed as error:  # as on a full disk, which a start frees
            log.warning("cluster not saved, the next start takes any cluster=%s error=%s", named, error)
        else:
            log.info("joined cluster=%s zookeeper=%s", named, self._session.connect)
        return True

    def confirm(self) -> None:
        """Check it again before a registration. Names a ZooKeeper that was emptied meanwhile. Raises OtherCluster,
        ZooKeeperError."""
        assert self.id is not None, "joined before"
        if (found := name_cluster(self._session, self.id)) != self.id:
            raise _other_cluster(self._session, self._directory, self.id, found)
