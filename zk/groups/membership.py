"""A consumer's membership: its id node with the topics it subscribes to, and the other members (spec 9.1, 9.3)."""

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zk.errors import MalformedNode, ZooKeeperError
from zk.session.ephemerals import NodeHolder, claim_waiting, release
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import decode_topics, encode_topics, string_order
from zk.tree.paths import ConsumerKey, ConsumerParentKey, check_name
from zk.tree.transactions import Create, Remove


class ConsumerIdTaken(ZooKeeperError):
    """Another live consumer of the group has this id. Two of one id would both read the same partitions."""


class GroupChanged(ZooKeeperError):
    """A member left while the group was read. Read it again."""


def new_consumer_id(group: str, host: str, configured: str | None = None) -> str:
    """Return ``<group>_<configured>``, or an id unique to this host, process and call. Raises InvalidName."""
    return check_name(f"{group}_{configured or f'{host}-{os.getpid()}-{uuid.uuid4()}'}")


@dataclass(frozen=True, slots=True)
class GroupView:
    """The members of a group, by topic; each list in string order, as strategies require."""

    consumers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class ConsumerMembership:
    """One consumer's id node. Call from one thread, cancel() from any."""

    def __init__(self, session: ZooKeeperSession, group: str, consumer_id: str) -> None:
        self._session = session
        self._group = group
        self._path = session.paths.of(ConsumerKey(group, consumer_id))
        self._cancelled = threading.Event()

    def join_group(self, topics: frozenset[str], progress: Callable[[str], None]) -> None:
        """Enter the group with these topics. Call it again after LOST, or to change the topics.

        Waits one session timeout for a configured id that is taken, perhaps by a crashed process; calls *progress* once
        with a text that says so. Raises ConsumerIdTaken, ZooKeeperUnavailable.
        """
        bad = sorted(topic for topic in topics if "," in topic)
        if bad:
            raise ZooKeeperError(f"topic {bad[0]!r} holds a comma, which separates topics in {self._path}: rename it")

        def tell(holder: NodeHolder, wait_s: float) -> None:
            progress(f"{self._path} exists: waiting up to {wait_s:.0f} s for its ZooKeeper session to end")

        holder = claim_waiting(
            self._session, self._path, encode_topics(topics), progress=tell, cancelled=self._cancelled
        )
        if holder is not None:
            raise ConsumerIdTaken(f"{self._path} belongs to a live consumer: stop it, or use another consumer id")

    def cancel(self) -> None:
        """Make a join_group() that waits raise at once."""
        self._cancelled.set()

    def trigger_rebalance(self) -> None:
        """Make every member rebalance: replace this member's id node by an equal one, in one transaction, so that all
        watches fire and no member sees the group without it.

        Needed because a genuine member stays idle after seven failures until the group changes. Raises
        ZooKeeperUnavailable.
        """
        node = self._session.read(self._path)
        if node is not None and node.session_id == self._session.session_id:
            again = Remove(self._path, node.version), Create(self._path, node.data, ephemeral=True)
            self._session.transact_many([again])

    def leave_group(self) -> None:
        """Remove the id node. Idempotent."""
        release(self._session, self._path)

    def topics(self) -> frozenset[str] | None:
        """Return the topics in the id node; None if it is gone, or another client's: call join_group() again."""
        node = self._session.read(self._path)
        try:
            return None if node is None else decode_topics(self._path, node.data)
        except MalformedNode:
            return None


def read_group(session: ZooKeeperSession, group: str) -> GroupView:
    """Read all members and their topics; skips malformed id nodes: `session.malformed` has them. Raises GroupChanged,
    ZooKeeperUnavailable."""
    parent = session.paths.of(ConsumerParentKey(group))
    wanted = {f"{parent}/{child}": child for child in session.children(parent)}
    found = session.malformed.read(session.read_readable, wanted, decode_topics)
    if len(found.keys() | session.malformed.found.keys() & wanted.keys()) < len(wanted):  # one went meanwhile
        raise GroupChanged(f"a consumer of group {group!r} left while it was read: read the group again")
    consumers: dict[str, list[str]] = {}
    for path, topics in found.items():
        for topic in topics:
            consumers.setdefault(topic, []).append(wanted[path])
    return GroupView({topic: tuple(sorted(ids, key=string_order)) for topic, ids in consumers.items()})
