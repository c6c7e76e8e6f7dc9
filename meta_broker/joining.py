"""A broker's way into ZooKeeper, which may take long, while its loop goes on."""

import asyncio
from collections.abc import Callable, Mapping

from meta_broker.membership import Membership
from meta_broker.replication.fencing import Superseded
from zk.broker_url import BrokerUrl
from zk.errors import ZooKeeperError
from zk.registration import TopicRegistration

# Why a broker is not registered: BrokerIdTaken and Superseded are for good.
NotJoined = ZooKeeperError | Superseded


class Joining:
    """Registers one broker. Loop thread only; what blocks does so on a thread of its own."""

    def __init__(self, membership: Membership, failed: Callable[[NotJoined], None]) -> None:
        """*failed* is told why the broker is not registered, unless it is about to leave; `begin` may follow."""
        self._membership = membership
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False

    @property
    def has_begun(self) -> bool:
        """Whether it is registered, or on its way."""
        return self._task is not None

    def begin(
        self,
        url: BrokerUrl,
        topics: Mapping[str, TopicRegistration],
        epoch: int,
        joined: Callable[[], None] = lambda: None,
    ) -> None:
        """As `Membership.join`; returns at once, and tells *joined* once peers see the broker."""
        assert self._task is None
        join = asyncio.to_thread(self._membership.join, url, topics, epoch)
        self._task = asyncio.get_running_loop().create_task(join)
        self._task.add_done_callback(lambda task: self._ended(task, joined))

    def _ended(self, task: "asyncio.Task[None]", joined: Callable[[], None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, NotJoined):
            raise error
        if self._is_leaving:
            return  # it was told to stop: nobody is to come any more, and why nobody could is no error
        if error is None:
            joined()
        else:
            self._task = None
            self._failed(error)

    async def leave(self) -> None:
        """Give up what is under way, and unregister, so that nobody new comes. Idempotent."""
        self._is_leaving = True
        self._membership.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._membership.leave)
