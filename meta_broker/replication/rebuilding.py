"""Changing what a slave keeps, while nothing of it is open: cutting what its master never had, or beginning anew."""

import contextlib
import logging
import shutil

from journal.bootstrap import begin_copy, bootstrap_names
from journal.cut_file import Cut
from journal.cutting import cut, empty
from journal.errors import CutTooDeep, StorageFailed
from journal.segments import Identity, segment_base
from journal.storage import DirectoryStorage
from journal.transaction_store import wall_clock_ms
from meta_broker.config import BrokerConfig
from meta_broker.errors import ConfigError
from meta_broker.replication.following import Rebuild

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
