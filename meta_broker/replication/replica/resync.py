"""Changes a data directory while it is closed.

A slave truncates what its master never had, or is resynced in full; a master restores the tail it lost from a slave.
"""

import contextlib
import logging
import shutil

from journal.errors import TruncationTooDeep
from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.state.initial_sync import begin_initial_sync, initial_sync_names
from journal.state.saved_tail import DivergentTail
from journal.state.truncation import clear, truncate
from journal.state.wall_clock import wall_clock_ms
from journal.wal.marks import SavedWatermark, read_watermark, write_watermark
from journal.wal.segments import segment_base
from journal.wal.storage import DirectoryStorage
from journal.wal.storage_file import translated
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import BrokerError, ConfigError
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.replica.effects import Resync
from meta_broker.store.archive_tier import ARCHIVED
from zk.brokers.replication import ReplicationNode

log = logging.getLogger(__name__)


def resync(config: BrokerConfig, what: Resync) -> None:
    """Apply *what* to the slave's directory; durable on return. Blocks.

    Interrupted by a crash, it is repeated, or finished by the next start. Raises ConfigError if an operator has to
    decide, ForeignStream, StorageFailed.
    """
    with contextlib.closing(DirectoryStorage.open_for_writing(config.data)) as storage:
        if what.checkpoint is None:
            _truncate(config, storage, what)
        else:
            _start_over(config, storage, what, what.checkpoint)


def restore_tail(config: BrokerConfig, lost: LostTail) -> None:
    """Make a master's journal end as its slave's does; durable on return. Blocks.

    What the master wrote from the divergence LSN on, of which nothing was acknowledged, is saved like any truncated
    tail. A crash in between leaves less, which is fetched again. Raises BrokerError if an operator has to decide,
    ForeignStream, StorageFailed.
    """
    with contextlib.closing(DirectoryStorage.open_for_writing(config.data)) as storage:
        try:
            saved = truncate(storage, config.identity, lost.divergence_lsn, wall_clock_ms())
        except TruncationTooDeep as error:
            raise BrokerError(
                f"slave {lost.slave_id}, which was in sync, has what this master lost, from LSN {lost.divergence_lsn} "
                f"on, and {error}: make that slave the master with `metaq promote`, and this one will follow it"
            ) from error
        _drop_derived(config, "keys")
        with contextlib.closing(JournalFollower.open(storage, config.identity, config.journal)) as follower:
            for lsn, data in lost.pieces.read():
                if (skipped := max(follower.received_lsn - lsn, 0)) < len(data):
                    follower.receive(lsn + skipped, memoryview(data)[skipped:])
        watermark = read_watermark(storage)
        write_watermark(storage, SavedWatermark(watermark.lsn if watermark is not None else Lsn(0), is_whole=True))
    log.warning(
        "lost tail restored from=%d to=%d slave=%d saved=%s", lost.divergence_lsn, lost.end, lost.slave_id, _name(saved)
    )


def why_async_is_unsafe(config: BrokerConfig, node: ReplicationNode | None) -> str | None:
    """Return why a master must not start in mode async, if that is its mode: it may have lost acknowledged data.

    Raises StorageFailed.
    """
    if config.replication.mode == "sync" or node is None or node.mode == "async" or not node.in_sync:
        return None
    if not config.data.is_dir():
        return None
    watermark = read_watermark(DirectoryStorage.open_for_reading(config.data))
    if watermark is None or watermark.is_whole:
        return None
    return (
        f"{config.data} was not stopped cleanly in mode sync, and may lack what was acknowledged; in sync are slaves "
        f"{', '.join(map(str, node.in_sync))}: start it in mode sync beside one of them and stop it, then change "
        f"replication.mode"
    )


def _truncate(config: BrokerConfig, storage: DirectoryStorage, what: Resync) -> None:
    try:
        saved = truncate(storage, config.identity, what.lsn, wall_clock_ms())
        _drop_derived(config, "keys")  # these offsets are assigned again; index files are checked against checkpoints
        log.warning(
            "tail truncated from=%d saved=%s: %s; see `metaq journal truncations`", what.lsn, _name(saved), what.reason
        )
    except TruncationTooDeep as error:
        # Everything below it is the master's too: only what follows is worth saving.
        saved = clear(storage, config.identity, what.lsn, wall_clock_ms())
        _drop_derived(config, "index", "keys", ARCHIVED)
        log.warning("full resync, tail truncated from=%d saved=%s: %s", what.lsn, _name(saved), error)


def _start_over(config: BrokerConfig, storage: DirectoryStorage, what: Resync, checkpoint: bytes) -> None:
    is_unfinished = any(initial_sync_names(storage))
    if is_unfinished or any(segment_base(name) is not None for name in storage.names()):
        if not is_unfinished and not config.slave.full_resync:  # an unfinished initial sync loses nothing
            raise ConfigError(
                f"{config.data} holds records that are of no use to a slave of this master: {what.reason}; to give "
                f"them up, empty the directory, or set full_resync = true in [slave]"
            )
        clear(storage, config.identity, None, wall_clock_ms())
        _drop_derived(config, "index", "keys", ARCHIVED)
    if checkpoint:
        begin_initial_sync(storage, what.lsn, checkpoint)
    log.warning("full resync start=%d checkpoint_bytes=%d: %s", what.lsn, len(checkpoint), what.reason)


def _name(saved: DivergentTail | None) -> str:
    return "nothing" if saved is None else saved.name


def _drop_derived(config: BrokerConfig, *names: str) -> None:
    """Delete directories derived from records that are gone. Raises StorageFailed."""
    for name in names:
        with translated(config.data / name), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(config.data / name)
