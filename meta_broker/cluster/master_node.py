"""The ZooKeeper node that registers a broker id's master, as a process that is about to be that master finds it."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from meta_broker.cluster.former_session import FormerSession
from zk.brokers.registration import BrokerIdTaken
from zk.errors import ZooKeeperUnavailable
from zk.session.ephemerals import EXPIRY_SLACK_S, POLL_S, NodeHolder
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName, decode_broker_url
from zk.tree.paths import PresenceKey

log = logging.getLogger(__name__)

Insist = Callable[[str, Callable[[], Any]], Any]  # repeats a request, which it names, while ZooKeeper is away


class MasterNode:
    """Reads that node. Blocks; any thread."""

    def __init__(
        self,
        session: ZooKeeperSession,
        name: BrokerName,
        former: FormerSession,
        insist: Insist,
        cancelled: threading.Event,
    ) -> None:
        self._session = session
        self._name = name
        self._path: Final = session.paths.of(PresenceKey(BrokerName(name.broker_id)))
        self._former = former
        self._insist = insist
        self._cancelled = cancelled

    def url(self) -> BrokerUrl | None:
        """Return the registered address. Raises MalformedNode, ZooKeeperUnavailable."""
        node = self._session.read(self._path)
        return None if node is None else decode_broker_url(self._path, node.data)

    def has_holder(self) -> bool:
        """Return True if another process is registered, which may be dead; not what a killed broker left in this
        directory. Raises ZooKeeperUnavailable only once cancelled."""
        return self._insist("reading the master's node", self._holder) is not None

    def await_free(self) -> None:
        """Wait one session timeout for the end of a holder. Raises BrokerIdTaken if it is still there then;
        ZooKeeperUnavailable only once cancelled."""
        self._insist("waiting for its id", self._await_free)

    def _holder(self) -> NodeHolder | None:
        node = self._session.read(self._path)
        if node is None or node.session_id in (self._session.session_id, self._former.session_id):
            return None
        return NodeHolder(node.data, node.session_id)

    def _await_free(self) -> None:
        wait_s = self._session.session_timeout_s + EXPIRY_SLACK_S
        deadline = time.monotonic() + wait_s
        log.warning("%s is held by another process: waiting up to %.0f s for its session to end", self._path, wait_s)
        while (found := self._holder()) is not None:
            if time.monotonic() >= deadline:
                raise BrokerIdTaken(self._name, self._path, found)
            if self._cancelled.wait(POLL_S):
                raise ZooKeeperUnavailable(f"broker {self._name} was told to stop before its id was free")
