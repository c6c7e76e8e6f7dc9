"""Desired and known state of one broker in ZooKeeper, and the next step between them. Pure: time is passed in.

It keeps the desired state, not a log of events: only the last change of each topic counts, and a failed one is retried
later without delaying anything else. The steps, in the order in which `next` prefers them:

    step            waits for               because
    Register        a connection            clients cannot find the broker; a superseded one must stop
    WriteInSync     the one before it       a master may acknowledge nothing until it is written
    CheckNode       Register                somebody deleted the broker's node, perhaps: clients do not find it
    WritePosition   Register                a superseded one has nothing to say
    WriteChecksum   Register                the node is ephemeral
    WriteTopics     Register                clients that see a topic look for its broker

A step that fails is retried after RETRY_S. A topic that fails by itself is retried after RETRY_S, then after twice
that, up to TOPIC_RETRY_S_MAX.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from zk.brokers.journal_position import JournalPosition
from zk.brokers.registration import TopicRegistration
from zk.brokers.replication import ReplicationNode
from zk.session.session import SessionEvent, SessionState

RETRY_S: Final = 1.0
TOPIC_RETRY_S_MAX: Final = 60.0
NAMED_MAX: Final = 5  # topics named in one line of log
TOPICS_PER_STEP: Final = 256  # some tens of milliseconds: the longest delay of an in-sync change


@dataclass(frozen=True, slots=True)
class Register:
    """Claim the broker's id in this session."""

    epoch: int  # of the session


@dataclass(frozen=True, slots=True)
class WriteInSync:
    """Write the broker's replication node, then call *written*."""

    node: ReplicationNode
    written: Callable[[ReplicationNode], object]


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Read whether the broker's node is there, and watch it."""


@dataclass(frozen=True, slots=True)
class WritePosition:
    """Write how far the journal is."""

    position: JournalPosition


@dataclass(frozen=True, slots=True)
class WriteChecksum:
    """Write the checksum of the changed configuration file, for slaves."""

    checksum: int


@dataclass(frozen=True, slots=True)
class WriteTopics:
    """Write these topics' registrations; None: delete it."""

    topics: Mapping[str, TopicRegistration | None]


RegistrationStep = Register | WriteInSync | CheckNode | WritePosition | WriteChecksum | WriteTopics


@dataclass(slots=True)
class _Retry:
    at: float
    delay_s: float


class RegistrationPlan:
    """Plan of one broker's registration. One thread."""

    def __init__(self, checksum: int) -> None:
        """*checksum*: written by the first Register; a later one writes WriteChecksum's last."""
        self._is_connected = False
        self._session_epoch = 0
        self._registered_epoch = 0
        self._in_sync: deque[WriteInSync] = deque()
        self._must_check = False
        self._position: WritePosition | None = None  # to be written
        self._checksum = self._checksum_written = checksum
        self._topics: dict[str, TopicRegistration | None] = {}  # desired; None: to be deleted
        self._pending: dict[str, None] = {}  # topics to be written, oldest first
        self._failed: dict[str, _Retry] = {}  # topics that failed by themselves
        self._due_at: dict[type[RegistrationStep], float] = {}  # steps that failed

    # -- events -----------------------------------------------------------------------------------------------

    def session_changed(self, event: SessionEvent) -> None:
        self._is_connected = event.state is SessionState.CONNECTED
        self._session_epoch = event.epoch
        self._due_at.clear()  # there is a connection again

    def in_sync_changed(self, change: WriteInSync) -> None:
        self._in_sync.append(change)

    def node_changed(self) -> None:
        """The broker's node was changed or deleted, or its watch is over."""
        self._must_check = True

    def node_deleted(self) -> None:
        """The broker's node is gone, though its session lives."""
        self._registered_epoch = 0

    def position_changed(self, position: JournalPosition) -> None:
        self._position = WritePosition(position)

    def checksum_changed(self, checksum: int) -> None:
        self._checksum = checksum

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        """Add a topic as topic_changed does, unless it has a registration already."""
        if self._topics.get(topic) is None:
            self.topic_changed(topic, registration)

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        """Set a topic's registration; None: it is not offered any more."""
        self._topics[topic] = registration
        self._pending[topic] = None
        self._failed.pop(topic, None)

    # -- steps ------------------------------------------------------------------------------------------------

    def next(self, now: float) -> RegistrationStep | None:
        """Return the step to take now; None: wait for an event, or for `wait_s`. Call `done` or `failed` after
        taking it.
        """
        if not self._is_connected:
            return None
        if not self._is_registered and self._is_due(Register, now):
            return Register(self._session_epoch)
        if self._in_sync and self._is_due(WriteInSync, now):
            return self._in_sync[0]
        if not self._is_registered:
            return None
        if self._must_check and self._is_due(CheckNode, now):
            return CheckNode()
        if self._position is not None and self._is_due(WritePosition, now):
            return self._position
        if self._checksum != self._checksum_written and self._is_due(WriteChecksum, now):
            return WriteChecksum(self._checksum)
        if self._is_due(WriteTopics, now) and (names := self._next_topics(now)):
            return WriteTopics({name: self._topics[name] for name in names})
        return None

    def wait_s(self, now: float) -> float | None:
        """Return the seconds after *now* until a retry is due; None: only an event can make a step."""
        if not self._is_connected:
            return None
        times = (*self._due_at.values(), *(retry.at for retry in self._failed.values()))
        return min((at - now for at in times if at > now), default=None)

    # -- results ----------------------------------------------------------------------------------------------

    def done(self, step: RegistrationStep, now: float, failed: Collection[str] = ()) -> None:
        """Record that *step* was taken; of its topics, *failed* could not be written."""
        self._due_at.pop(type(step), None)
        match step:
            case Register(epoch):
                self._registered_epoch = epoch
                self._pending = dict.fromkeys(self._topics)
                self._failed.clear()
            case WriteInSync():
                assert self._in_sync[0] is step
                self._in_sync.popleft()
            case CheckNode():
                self._must_check = False
            case WritePosition():
                if self._position is step:  # else a later one came meanwhile
                    self._position = None
            case WriteChecksum(checksum):
                self._checksum_written = checksum
            case WriteTopics(topics):
                for topic, registration in topics.items():
                    self._pending.pop(topic, None)
                    if topic in failed:
                        self._topic_failed(topic, now)
                        continue
                    self._failed.pop(topic, None)
                    if registration is None:
                        del self._topics[topic]

    def failed(self, step: RegistrationStep, now: float) -> None:
        """Record that *step* failed as a whole."""
        self._due_at[type(step)] = now + RETRY_S

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """True once everything was written, except topics that failed by themselves."""
        return self._is_registered and not self._pending

    @property
    def is_registered(self) -> bool | None:
        """True if the broker is registered in the current session; None without a connection: unknown."""
        if not self._is_connected:
            return None
        return self._registered_epoch > 0 and self._is_registered

    @property
    def failed_topics(self) -> list[str]:
        """Topics that failed by themselves, and are retried."""
        return list(self._failed)

    @property
    def _is_registered(self) -> bool:
        return self._registered_epoch >= self._session_epoch

    def _is_due(self, step: type[RegistrationStep], now: float) -> bool:
        return self._due_at.get(step, now) <= now

    def _next_topics(self, now: float) -> list[str]:
        names = [name for name, retry in self._failed.items() if retry.at <= now]
        # Failed topics are written apart from others, which a refused one would delay.
        return (list(self._pending) or names)[:TOPICS_PER_STEP]

    def _topic_failed(self, topic: str, now: float) -> None:
        former = self._failed.get(topic)
        delay_s = RETRY_S if former is None else min(2 * former.delay_s, TOPIC_RETRY_S_MAX)
        self._failed[topic] = _Retry(now + delay_s, delay_s)


def some(topics: Collection[str]) -> str:
    """Return the topics' names for the log; only the first ones if there are many."""
    names = ",".join(list(topics)[:NAMED_MAX])
    return f"{names},..." if len(topics) > NAMED_MAX else names
