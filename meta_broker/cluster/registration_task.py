"""Registers a broker in ZooKeeper, which may take long, while its loop goes on."""

import asyncio
from collections.abc import Callable, Mapping

from meta_broker.cluster.membership import Membership
from meta_broker.replication.fencing import Superseded
from zk.brokers.registration import TopicRegistration
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

# Reasons a broker is not registered: BrokerIdTaken and Superseded are final.
NotRegistered = ZooKeeperError | Superseded


class RegistrationTask:
    """Registers one broker. Loop thread only; blocking calls run on another thread."""

    def __init__(self, membership: Membership, failed: Callable[[NotRegistered], None]) -> None:
        """*failed* is called with the reason the broker is not registered, unless it is leaving; `begin` may follow."""
        self._membership = membership
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False

    @property
    def has_begun(self) -> bool:
        """True if the broker is registered, or about to be."""
        return self._task is not None

    def begin(
        self,
        url: BrokerUrl,
        topics: Mapping[str, TopicRegistration],
        epoch: int,
        registered: Callable[[], None] = lambda: None,
    ) -> None:
        """Start `Membership.register`; return at once, and call *registered* once it is done."""
        assert self._task is None
        registering = asyncio.to_thread(self._membership.register, url, topics, epoch)
        self._task = asyncio.get_running_loop().create_task(registering)
        self._task.add_done_callback(lambda task: self._ended(task, registered))

    def _ended(self, task: "asyncio.Task[None]", registered: Callable[[], None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, NotRegistered):
            raise error
        if self._is_leaving:
            return  # leaving: a failed registration is no error
        if error is None:
            registered()
        else:
            self._task = None
            self._failed(error)

    async def unregister(self) -> None:
        """Cancel a running registration, and unregister. Idempotent."""
        self._is_leaving = True
        self._membership.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._membership.unregister)
