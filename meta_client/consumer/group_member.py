"""A member of a consumer group: joins, takes its share of the partitions, leaves (spec 9).

One thread owns all state. ZooKeeper's events reach it through a queue. Only one action is taken on kazoo's thread at
once: delivery is paused when the connection to ZooKeeper breaks, because another member may be given our partitions
from then on. Partitions that stay in a rebalance are not interrupted.
"""

import logging
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.owned_partitions import OwnedPartitions
from meta_client.consumer.rebalance_history import Rebalance, Rebalances
from meta_client.consumer.rebalance_plan import GroupSnapshot, Member, plan_rebalance
from meta_client.consumer.watchdog import Cure, PartitionFinding
from meta_client.consumer.watching import Watching
from meta_client.logs.context import logged_with
from zk.brokers.cluster import read_brokers, read_topic, subscribable_partitions
from zk.errors import ZooKeeperError
from zk.groups.membership import ConsumerMembership, GroupChanged, read_group
from zk.groups.strategy import STRATEGIES
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.session.watches import ChildrenChanged, ChildrenWatches
from zk.tree.nodes import TopicPartition
from zk.tree.paths import ConsumerParentKey, TopicKind, TopicParentKey

RETRY_FIRST_S = 0.05  # the member that has to release is notified at the same moment as we are
RETRY_MAX_S = 1.0
GATHER_S = 0.01  # wait for more owners to release, once one has

_log = logging.getLogger(__name__)


class _Told(Enum):
    STOP = "close() was called"
    RESET = "an offset was reset: it has to be stored before its partition is delivered"
    RETURNED = "the listener of a withdrawn partition has returned"


@dataclass(frozen=True, slots=True)
class _Session:
    """A session event, with the number of the last pause before it."""

    event: SessionEvent
    pauses: int


@dataclass(frozen=True, slots=True)
class _Stale:
    """A broker has seen a higher epoch of a partition than ours."""

    key: TopicPartition
    epoch: int
    epoch_seen: int


_Event = _Stale | ChildrenChanged | _Session | _Told


class GroupMember:
    """An active member. Call start() once, close() once; everything else runs on its own thread."""

    def __init__(
        self,
        session: ZooKeeperSession,
        member: Member,
        owned: OwnedPartitions,
        fetcher: Fetcher,
        config: ConsumerConfig,
    ) -> None:
        self._session = session
        self._member = member
        self._strategy = STRATEGIES[config.strategy]
        self._owned = owned
        self._fetcher = fetcher
        self._commit_period_s = config.commit_period_s
        self._watching = Watching(session, member, self._strategy, owned, fetcher, config)
        self._snapshot: GroupSnapshot | None = None  # of the last rebalance in this session
        self._membership = ConsumerMembership(session, member.group, member.consumer_id)
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._watches = ChildrenWatches(session, self._events.put)
        self._owner_folders = {session.paths.owners(member.group, topic): topic for topic in member.topics}
        self._started: Future[None] = Future()
        self._pauses = 0  # kazoo's thread only
        self._is_connected = True
        self._joined_epoch = 0  # of the session that holds our id node; 0: none
        self._rebalances = Rebalances(member.group)
        self._rebalance_at = 0.0  # if one is due
        self._retry_s = RETRY_FIRST_S
        fetcher.on_stale = lambda request, seen: self._events.put(_Stale(request.key, request.epoch or 0, seen))
        fetcher.on_returned = lambda: self._events.put(_Told.RETURNED)
        fetcher.on_reset = lambda: self._events.put(_Told.RESET)
        self._commit_at = time.monotonic() + config.commit_period_s
        self._thread = threading.Thread(target=self._run, name=f"metaq {member.group} member", daemon=True)

    def start(self) -> None:
        """Join and try to take a share. Raises ConsumerIdTaken and other ZooKeeperErrors; the member has left then."""
        self._thread.start()
        self._started.result()

    def close(self) -> None:
        """Stop delivery, commit, release everything, leave. Without ZooKeeper the release is deferred to session
        expiry, and messages not committed are delivered again."""
        self.cancel()
        if self._started.cancel():  # its thread was not started, and will do nothing
            self._leave()
            return
        self._events.put(_Told.STOP)
        self._thread.join()

    def cancel(self) -> None:
        """Make start() raise if it waits for another member's id. Any thread."""
        self._membership.cancel()

    def rebalances(self) -> tuple[Rebalance, ...]:
        """Return the last rebalances, oldest first. Any thread."""
        return self._rebalances.recent()

    def has_whole_share(self) -> bool:
        """Return True if no rebalance is due. Any thread."""
        return self._is_connected and not self._rebalances.is_due

    def findings(self) -> tuple[PartitionFinding, ...]:
        """Return the watchdog's current findings. Any thread."""
        return self._watching.current()

    def on_session_event(self, event: SessionEvent) -> None:
        """Pause delivery unless connected, and queue the event; called on kazoo's thread."""
        if event.state is not SessionState.CONNECTED:
            self._pauses = self._fetcher.assignments.pause()
        self._events.put(_Session(event, self._pauses))

    def _run(self) -> None:
        if not self._started.set_running_or_notify_cancel():
            return
        try:
            self._rebalances.heard("started")
            self._join_group()
            self._maybe_rebalance()
            self._fetcher.assignments.resume(0)
        except Exception as error:
            try:
                self._leave()
            finally:
                self._started.set_exception(error)  # start() raises it
            return
        self._started.set_result(None)
        try:
            while self._handle(self._next_event()):
                if self._is_connected:
                    self._maybe_rebalance()
                    self._maybe_commit()
                    self._maybe_check()
        finally:
            self._leave()

    def _next_event(self) -> _Event | None:
        if not self._is_connected:
            return self._events.get()  # wait for ZooKeeper
        wake_at = min(self._commit_at, self._watching.check_at)
        if self._rebalances.is_due:
            wake_at = min(wake_at, self._rebalance_at)
        try:
            return self._events.get(timeout=min(max(0.001, wake_at - time.monotonic()), threading.TIMEOUT_MAX))
        except Empty:
            return None

    def _handle(self, event: _Event | None) -> bool:
        """Handle one event; False to stop."""
        match event:
            case _Told.STOP:
                return False
            case ChildrenChanged(path) if path in self._owner_folders:
                self._hurry()
            case ChildrenChanged(path):
                self._rebalance_at_once(self._reason(path))
            case _Stale(key, epoch, epoch_seen):
                if self._owned.release_stale(key, epoch, epoch_seen):
                    _log.warning(
                        "stale owner, giving the partition up group=%s partition=%s/%s epoch=%d seen=%d",
                        *(self._member.group, *key, epoch, epoch_seen),
                    )
                    self._drop_lost()
            case _Told.RESET:
                self._commit_at = 0.0
            case _Told.RETURNED:
                self._rebalance_at_once("listener returned")
            case _Session(SessionEvent(SessionState.CONNECTED, epoch), pauses):
                self._is_connected = True
                if epoch != self._joined_epoch:
                    self._start_over()
                self._rebalance_at_once("connected again")
                self._fetcher.assignments.resume(pauses)
            case _Session(SessionEvent(state)):
                self._is_connected = False  # delivery is paused already
                if state is SessionState.LOST:
                    self._start_over()
            case None:
                pass
        return True

    def _reason(self, path: str) -> str:
        place = self._session.paths.maybe_parse(path)
        return f"partitions of {place.topic} changed" if isinstance(place, TopicParentKey) else "members changed"

    def _rebalance_at_once(self, reason: str) -> None:
        self._rebalances.heard(reason)
        self._rebalance_at = 0.0
        self._retry_s = RETRY_FIRST_S

    def _hurry(self) -> None:
        """Bring a due rebalance forward: an owner came or went, perhaps one we wait for. Waits a moment, as several go
        together."""
        if self._rebalances.is_due:
            self._rebalance_at = min(self._rebalance_at, time.monotonic() + GATHER_S)

    def _start_over(self) -> None:
        self._joined_epoch = 0
        self._snapshot = None
        if dropped := self._owned.drop_all():
            self._rebalances.heard("session lost")
            self._rebalances.moved(set(), dropped)
            _log.warning("session lost, starting over group=%s partitions=%d", self._member.group, len(dropped))

    def _join_group(self) -> None:
        epoch = self._session.epoch
        self._owned.note_tree(self._session.look_at_tree())
        self._membership.join_group(self._member.topics, _log.warning)
        self._joined_epoch = epoch

    def _maybe_rebalance(self) -> None:
        """Rebalance if due; repeat with back-off until the whole share is owned."""
        if not self._rebalances.is_due or time.monotonic() < self._rebalance_at:
            return
        self._rebalances.attempt()
        with logged_with(rebalance=f"{self._member.consumer_id}/{self._rebalances.number}"):
            self._try_rebalance()

    def _try_rebalance(self) -> None:
        is_complete = False
        try:
            is_complete = self._rebalance()
        except GroupChanged:
            pass  # the watch on the members has fired too
        except ZooKeeperError as error:
            _log.warning("rebalance failed, trying again group=%s error=%s", self._member.group, error)
        except Exception:
            # Any error: a member that stopped here would keep its partitions and read none of them.
            _log.exception("rebalance failed, trying again group=%s", self._member.group)
        if is_complete:
            self._retry_s = RETRY_FIRST_S
        else:
            # Jitter, so that members do not retry in step.
            self._rebalance_at = time.monotonic() + self._retry_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            self._wait_for_owners()

    def _rebalance(self) -> bool:
        """Try once; False if another member, or a listener of ours, still holds a partition that is to move."""
        if not self._joined_epoch or self._membership.topics() is None:
            self._join_group()
        snapshot = self._snapshot = self._read_snapshot()
        plan = plan_rebalance(snapshot, self._member.consumer_id, self._owned.keys(), self._strategy)
        self._fetcher.set_brokers(read_brokers(self._session))
        if plan.release:
            self._rebalances.moved(set(), set(plan.release))
            self._owned.release(plan.release)
        is_settled = self._owned.finish_releases(plan.claim)
        claimed = self._owned.claim(plan.claim)
        self._rebalances.moved(claimed, set())
        if self._drop_lost() or not is_settled or len(claimed) < len(plan.claim):
            return False
        members = {member for members in snapshot.consumers.values() for member in members}
        partitions = sum(map(len, snapshot.partitions.values()))
        self._rebalances.done(len(self._owned.keys()), len(members), partitions)
        return True

    def _wait_for_owners(self) -> None:
        """Watch the owners that block us, to retry as soon as one releases."""
        blocked = self._owned.blocked
        try:
            for folder, topic in self._owner_folders.items():
                waited_for = {str(partition) for name, partition in blocked if name == topic}
                if waited_for and not waited_for <= set(self._watches.read(folder)):
                    self._hurry()  # one has released already
        except ZooKeeperError as error:
            _log.warning("owners are not watched, trying again group=%s error=%s", self._member.group, error)

    def _read_snapshot(self) -> GroupSnapshot:
        # Watch first, then read: a change in between fires the watch.
        paths = self._session.paths
        self._watches.read(paths.of(ConsumerParentKey(self._member.group)))
        for topic in self._member.topics:
            self._watches.read(paths.of(TopicParentKey(TopicKind.SUB, topic)))
        partitions = {
            topic: subscribable_partitions(read_topic(self._session, TopicKind.SUB, topic))
            for topic in self._member.topics
        }
        return GroupSnapshot(read_group(self._session, self._member.group).consumers, partitions)

    def _maybe_commit(self) -> None:
        if time.monotonic() >= self._commit_at:
            self._owned.commit()
            self._drop_lost()
            self._commit_at = time.monotonic() + self._commit_period_s

    def _maybe_check(self) -> None:
        """Run the watchdog if due, and apply its cures."""
        try:
            cures = self._watching.maybe_check(self._snapshot)
            if cures.get(Cure.CALL):
                self._membership.trigger_rebalance()
        except ZooKeeperError as error:
            _log.warning("watchdog could not check, it will again group=%s error=%s", self._member.group, error)
            return
        except Exception:  # any error: it must not end the member's thread
            _log.exception("watchdog could not check, it will again group=%s", self._member.group)
            return
        if reclaimed := cures.get(Cure.RECLAIM):
            self._owned.reclaim(reclaimed)
            self._drop_lost("watchdog")
        elif Cure.REBALANCE in cures:
            self._rebalance_at_once("watchdog")

    def _drop_lost(self, reason: str = "lost to another member") -> bool:
        """Return True if partitions were lost to other members; schedules a rebalance then."""
        if lost := self._owned.take_lost():
            self._rebalances.moved(set(), lost)
            self._rebalance_at_once(reason)
        return bool(lost)

    def _leave(self) -> None:
        self._watches.stop()
        self._fetcher.close()
        if not self._is_connected:
            _log.warning("no ZooKeeper, leave deferred to session expiry group=%s", self._member.group)
            return
        try:
            self._owned.finish_releases(())
            self._membership.leave_group()
        except ZooKeeperError as error:
            _log.warning("leave deferred to session expiry group=%s error=%s", self._member.group, error)
