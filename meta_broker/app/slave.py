"""A slave's part in a broker's life.

The copy is changed only while it is closed: to truncate what its master never had, or to start over, the slave is
closed, changed and opened again, on the same port, in the same process.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.state.wall_clock import wall_clock_ms
from journal.wal.storage import Storage
from meta_broker.app.broker import Role, RoleChange, Start, closing, new_context, tune_garbage_collector
from meta_broker.cluster.membership import Membership
from meta_broker.cluster.registration_task import NotRegistered, RegistrationTask
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import ConfigError
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.replica.effects import Resync
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.replication.replica.resync import resync
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.clock import Clock
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore
from zk.brokers.registration import BrokerIdTaken
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)


class SlaveRole(Role):
    """Follows a master, and serves what it has acknowledged."""

    def __init__(self, config: BrokerConfig) -> None:
        assert config.is_slave
        super().__init__(config)
        self._file = SlaveFile(config.data)
        self._replica: ReplicaReceiver
        self._announcer: TopicAnnouncer
        self._registration: RegistrationTask | None

    async def open(self, start: Start) -> Dispatcher | None:
        config, membership, server, stack = self.config, start.membership, start.server, start.stack
        facts = read_slave_facts(config, self._file)
        store = MessageStore.open_over(
            config,
            functools.partial(_open_copy, config, facts, server.wake),
            Lsn(facts.high_watermark),
            Clock(),
        )
        await stack.enter_async_context(closing(store))
        follower = store.source
        assert isinstance(follower, JournalFollower)
        stack.enter_context(_last_checkpoint(store, follower))
        tune_garbage_collector()
        await asyncio.to_thread(self._file.write, facts)  # from now on a slave's directory
        serves = membership is not None and config.slave_registers
        ids, registry = MessageIds(config.broker_id, wall_clock_ms), membership if serves else None
        context = new_context(config, store, ids, registry, start.url, decides=False)
        self._announcer = context.announcer
        context.slave = self._replica = ReplicaReceiver(
            *(facts, self._file, store, follower, functools.partial(_find_master, config, membership)),
            *(self._announcer.announce, server.wake, start.end, wall_clock_ms),
            serves=serves,
            security=config.security,
        )
        return Dispatcher(context)

    def begin(self, start: Start, on_ready: Callable[[str], None]) -> RegistrationTask | None:
        replica = self._replica
        replica.begin(start.membership.cluster.id if start.membership is not None else None)
        start.stack.push_async_callback(replica.close)
        self._registration = None
        if start.membership is not None and replica.serves:
            self._registration = RegistrationTask(start.membership, functools.partial(_not_registered, start))
            start.stack.push_async_callback(self._registration.unregister)  # first out
        on_ready(_ready_line(self.config, replica, str(start.url)))
        return self._registration

    def tick(self, start: Start, store: MessageStore) -> None:
        replica, registration = self._replica, self._registration
        if registration is not None and not registration.has_begun and replica.is_readable:
            registration.begin(start.url, self._announcer.registrations(), replica.facts.epoch)
        if replica.follower.is_complete:
            store.checkpoints.maybe_begin(start.worker)

    async def stop(self) -> None: ...

    async def apply(self, change: RoleChange, *, is_stopping: bool) -> None:
        """Truncate the copy, or start it over; not before a stop: the next start ends the same way."""
        assert isinstance(change, Resync)
        if not is_stopping:
            await asyncio.to_thread(resync, self.config, change)


def _not_registered(start: Start, error: NotRegistered) -> None:
    if isinstance(error, BrokerIdTaken | Superseded):
        start.end(error)
    else:
        log.warning("not registered, trying again error=%s", error)  # with the next tick


def read_slave_facts(config: BrokerConfig, file: SlaveFile) -> SlaveFacts:
    """Return the slave file's facts, new ones without a file. Raises ConfigError if the directory is another
    slave's.
    """
    section = config.slave
    assert section.id is not None
    own = SlaveFacts(cluster=config.broker.cluster, broker_id=config.broker_id, slave_id=section.id)
    facts = file.read() or own
    if (facts.cluster, facts.broker_id, facts.slave_id) != (own.cluster, own.broker_id, own.slave_id):
        raise ConfigError(
            f"{config.data} is the directory of slave {facts.slave_id} of broker {facts.broker_id}, cluster "
            f"{facts.cluster!r}, not of slave {own.slave_id} of broker {own.broker_id}, cluster {own.cluster!r}: start "
            f"that one here, or give this one a --data directory of its own"
        )
    return facts


def _open_copy(
    config: BrokerConfig, facts: SlaveFacts, wake: Callable[[], None], storage: Storage, indexes: Indexes
) -> JournalFollower:
    return JournalFollower.open(
        storage,
        config.identity,
        config.journal,
        sink=indexes,
        on_progress=wake,
        publish_below=Lsn(facts.high_watermark),
        clock_ms=wall_clock_ms,
    )


async def _find_master(config: BrokerConfig, membership: Membership | None, facts: SlaveFacts) -> BrokerUrl | None:
    """Return the master to follow: the configured one, or ZooKeeper's; without a connection, the last one followed."""
    if config.slave.master is not None:
        host, _, port = config.slave.master.rpartition(":")
        return BrokerUrl(host.strip("[]"), int(port))
    assert membership is not None
    try:
        return await asyncio.to_thread(membership.master_node.url)
    except ZooKeeperError as error:
        log.warning("master not looked up, following the last one master=%s error=%s", facts.master, error)
        return BrokerUrl.parse(facts.master) if facts.master else None


@contextlib.contextmanager
def _last_checkpoint(store: MessageStore, follower: JournalFollower) -> Iterator[None]:
    """After a clean stop, take a last checkpoint, unless the copy is incomplete."""
    yield
    if store.journal.failure is None and follower.is_complete:
        store.last_checkpoint()


def _ready_line(config: BrokerConfig, replica: ReplicaReceiver, url: str) -> str:
    facts, recovered = replica.facts, replica.follower.recovered
    master = config.slave.master or facts.master or "the master that ZooKeeper names"
    where = f", ZooKeeper {config.zookeeper}" if config.zookeeper else ""
    unseen = "" if replica.serves else "; not registered, consumers do not come here"
    return (
        f"slave {facts.slave_id} of broker {config.broker_id} serves at {url}{where}, follows {master}; data "
        f"{config.data}, flush {config.flush}; replayed {recovered.replayed_bytes} bytes up to LSN "
        f"{replica.follower.end}{unseen}"
    )
