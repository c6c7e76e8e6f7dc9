"""Changing what a directory holds, while nothing of it is open.

A slave cuts what its master never had, or begins anew; a master takes back what it lost and a slave still has.
"""

import contextlib
import logging
import shutil

from journal.bootstrap import begin_copy, bootstrap_names
from journal.cut_file import Cut
from journal.cutting import cut, empty
from journal.errors import CutTooDeep, StorageFailed
from journal.follower import JournalFollower
from journal.frame import Lsn
from journal.open_journal import JournalConfig
from journal.segments import Identity, segment_base
from journal.storage import DirectoryStorage
from journal.transaction_store import wall_clock_ms
from journal.watermark import Watermark, read_watermark, write_watermark
from meta_broker.config import BrokerConfig
from meta_broker.errors import BrokerError, ConfigError
from meta_broker.replication.following import Rebuild
from meta_broker.replication.lost_tail import LostTail
from zk.replication import ReplicationNode

log = logging.getLogger(__name__)


def rebuild(config: BrokerConfig, what: Rebuild) -> None:
    """Do *what* to the slave's directory; durable on return. Blocks. What a crash cuts short is done again, or finished
    by the next start.

    Raises ConfigError where an operator has to decide, ForeignStream, StorageFailed.
    """
    identity = Identity(config.broker.cluster, config.broker_id)
    storage = DirectoryStorage.open_for_writing(config.data)
    try:
        if what.checkpoint is None:
            _cut(config, storage, identity, what)
        else:
            _begin_anew(config, storage, identity, what, what.checkpoint)
    finally:
        storage.close()


def take_back(config: BrokerConfig, lost: LostTail) -> None:
    """Make a master's journal end as its slave's does; durable on return. Blocks. What it wrote from the parting on, of
    which nothing was acknowledged, is kept as any cut. A crash in between leaves less, which is fetched again.

    Raises BrokerError where an operator has to decide, ForeignStream, StorageFailed.
    """
    identity = Identity(config.broker.cluster, config.broker_id)
    storage = DirectoryStorage.open_for_writing(config.data)
    try:
        try:
            saved = cut(storage, identity, lost.parting, wall_clock_ms())
        except CutTooDeep as error:
            raise BrokerError(
                f"slave {lost.slave_id}, which was in sync, has what this master lost, from LSN {lost.parting} on, and "
                f"{error}: make that slave the master with `metaq promote`, and this one will follow it"
            ) from error
        _drop_derived(config, "keys")
        journal = JournalConfig(segment_bytes=config.broker.segment_bytes, flush=config.flush)
        follower = JournalFollower.open(storage, identity, journal)
        try:
            for lsn, data in lost.pieces.read():
                if (skipped := max(follower.received - lsn, 0)) < len(data):
                    follower.receive(lsn + skipped, memoryview(data)[skipped:])
        finally:
            follower.close()
        mark = read_watermark(storage)
        write_watermark(storage, Watermark(mark.lsn if mark is not None else Lsn(0), is_whole=True))
    finally:
        storage.close()
    log.warning("taken back from=%d to=%d slave=%d cut=%s", lost.parting, lost.end, lost.slave_id, _name(saved))


def why_not_async(config: BrokerConfig, node: ReplicationNode | None) -> str | None:
    """Why a master must not begin in mode async, if that is its mode: it would not wait for what it may have lost.

    Raises StorageFailed.
    """
    if config.replication.mode == "sync" or node is None or node.mode == "async" or not node.in_sync:
        return None
    if not config.data.is_dir():
        return None
    mark = read_watermark(DirectoryStorage.open_for_reading(config.data))
    if mark is None or mark.is_whole:
        return None
    return (
        f"{config.data} was not stopped cleanly in mode sync, and may lack what was acknowledged; in sync are slaves "
        f"{', '.join(map(str, node.in_sync))}: start it in mode sync beside one of them and stop it, then change "
        f"replication.mode"
    )


def _cut(config: BrokerConfig, storage: DirectoryStorage, identity: Identity, what: Rebuild) -> None:
    try:
        saved = cut(storage, identity, what.lsn, wall_clock_ms())
        _drop_derived(config, "keys")  # they speak of offsets that are taken anew; index files go by checkpoints
        log.warning("cut from=%d saved=%s: %s; see `metaq journal cuts`", what.lsn, _name(saved), what.reason)
    except CutTooDeep as error:
        # What stands below it is the master's too, to the byte: only what is beyond is of any use to keep.
        saved = empty(storage, identity, what.lsn, wall_clock_ms())
        _drop_derived(config, "index", "keys")
        log.warning("begins anew, cut from=%d saved=%s: %s", what.lsn, _name(saved), error)


def _begin_anew(
    config: BrokerConfig, storage: DirectoryStorage, identity: Identity, what: Rebuild, checkpoint: bytes
) -> None:
    is_unfinished = any(bootstrap_names(storage))
    if is_unfinished or any(segment_base(name) is not None for name in storage.names()):
        if not is_unfinished and not config.slave.begin_anew:  # what is no journal yet is nobody's loss
            raise ConfigError(
                f"{config.data} holds records that are of no use to a slave of this master: {what.reason}; to give "
                f"them up, empty the directory, or set begin_anew = true in [slave]"
            )
        empty(storage, identity, None, wall_clock_ms())
        _drop_derived(config, "index", "keys")
    if checkpoint:
        begin_copy(storage, what.lsn, checkpoint)
    log.warning("begins anew start=%d checkpoint_bytes=%d: %s", what.lsn, len(checkpoint), what.reason)


def _name(saved: Cut | None) -> str:
    return "nothing" if saved is None else saved.name


def _drop_derived(config: BrokerConfig, *names: str) -> None:
    """Delete directories of what was made of records that are not there any more. Raises StorageFailed."""
    for name in names:
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(config.data / name)
        except OSError as error:
            raise StorageFailed(f"{config.data / name}: {error.strerror}") from error
