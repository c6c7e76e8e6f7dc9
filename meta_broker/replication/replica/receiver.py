"""Keeps a slave linked to the current master: finds it, connects, and connects again. `link.py` has one connection."""

import asyncio
import logging
import random

from meta_broker.replication.replica.link import DIAL_S, ReplicaLink, ReplicaOwner
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

# First and longest pause between two attempts, each up to doubled at random. Short: a promoted master may be unable to
# acknowledge anything until this slave has found it.
BACK_OFF_S = (0.1, 1.0)


class ReplicaReceiver:
    """Keeps one link to the current master. Call `progress` whenever more of the copy is durable."""

    def __init__(self, owner: ReplicaOwner) -> None:
        self._owner = owner
        self._link: ReplicaLink | None = None

    async def run(self) -> None:
        """Connect, follow and reconnect until cancelled."""
        pause_s, logged = BACK_OFF_S[0], ""
        try:
            while True:
                why = "there is no master now"
                if (url := await self._owner.find_master()) is not None:
                    link = self._link = ReplicaLink(self._owner)
                    why = await self._follow(link, url)
                    self._link = None
                    self._owner.on_disconnected()
                    if link.has_streamed:
                        pause_s, logged = BACK_OFF_S[0], ""
                if why != logged:  # once, not at every attempt while the master is away
                    log.warning("not following master=%s reason=%s", url or "?", why)
                    logged = why
                await asyncio.sleep(pause_s * random.uniform(0.5, 2))  # noqa: S311 (spreads load, keeps no secret)
                pause_s = min(2 * pause_s, BACK_OFF_S[1])
        finally:
            if self._link is not None:
                self._link.close()
                await self._link.closed.wait()

    def progress(self) -> None:
        """Acknowledge what became durable, and resume reading if it was paused."""
        if self._link is not None:
            self._link.progress()

    async def _follow(self, link: "ReplicaLink", url: BrokerUrl) -> str:
        """Connect and wait until the link is over; return why it ended."""
        try:
            await _connect(link, url)
        except TimeoutError:
            return f"no connection within {DIAL_S:g} s"
        except OSError as error:
            return f"no connection: {error.strerror or error}"
        why = await asyncio.shield(link.over)  # a cancelled run() closes the link itself
        await link.closed.wait()
        return why


async def _connect(link: "ReplicaLink", url: BrokerUrl) -> None:
    """Connect *link*. Raises OSError, TimeoutError."""
    try:
        async with asyncio.timeout(DIAL_S):  # wait_for may swallow a cancellation
            await asyncio.get_running_loop().create_connection(lambda: link, url.host, url.port)
    except BaseException:
        link.connection_lost(None)  # cancelled after connection_made, uvloop closes it and never says so
        raise
