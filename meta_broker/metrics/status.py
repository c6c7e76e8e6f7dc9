"""The parts of a running broker that metrics and health read, and its health."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meta_broker.cluster.membership import Membership
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.handlers.context import Context
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.net.server import Server
from meta_client.admin.health import Health

SECOND_LOOK_S: Final = 0.1  # a process that was stopped looks like one that hangs, until its loop has turned once


@dataclass(frozen=True, slots=True)
class OpenBroker:
    """An open broker. Set by its loop, read by any thread."""

    dispatcher: Dispatcher
    server: Server
    membership: Membership | None  # None: it does not register
    is_hanging: Callable[[], bool]  # as the watchdog sees it

    @property
    def context(self) -> Context:
        return self.dispatcher.context


class BrokerStatus:
    """A broker from its start to its end."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.open: OpenBroker | None = None  # None: it starts, or changes its directory

    def close(self) -> None:
        """Forget the open broker, whose directory is about to be closed."""
        self.open = None

    def live(self) -> Health:
        """Return whether the event loop turns. A broker that starts is alive: recovery may keep its loop for long."""
        why = self._why_not_live()
        if why:
            time.sleep(SECOND_LOOK_S)
            why = self._why_not_live()
        return Health(why)

    def ready(self) -> Health:
        """Return whether the broker serves its clients: recovered, registered, and as a master writable."""
        return Health(self.why_not_ready(), {"role": self.config.role, "broker_id": self.config.broker_id})

    def why_not_ready(self) -> tuple[str, ...]:
        if (broker := self.open) is None:
            return ("its journal is not open: it recovers, waits for ZooKeeper, or stops",)
        context, store = broker.context, broker.context.store
        reasons = [*self._why_not_live()]
        if context.is_stopping:
            reasons.append("it stops")
        if store.journal.failure is not None:
            reasons.append(f"its journal has stopped: {store.journal.failure}")
        if broker.is_hanging():
            reasons.append("its disk or event loop hangs: see the log")
        if (membership := broker.membership) is not None and not (is_registered := membership.is_registered):
            away = "ZooKeeper is away, perhaps it is not registered"
            reasons.append(away if is_registered is None else "it is not registered in ZooKeeper")
        if (master := context.master) is not None and (why := master.why_refusing()):
            reasons.append(f"it refuses writes: {why}")
        if store.space.why_gone:
            reasons.append(f"it writes nothing any more: {store.space.why_gone}")
        elif master is not None and store.space.is_full:
            reasons.append("it refuses messages: its disk is full, or has less free than disk_free_bytes_min")
        if context.slave is not None and not context.slave.is_readable:
            reasons.append("its copy is incomplete, or its master has not spoken yet")
        return tuple(reasons)

    def _why_not_live(self) -> tuple[str, ...]:
        if (broker := self.open) is None:
            return ()
        silent_s = time.monotonic() - broker.context.loop_delay.sampled_at
        limit_s = self.config.broker.hang_seconds_max
        if silent_s <= limit_s:
            return ()
        return (f"its event loop has not turned for {silent_s:.1f} s, hang_seconds_max is {limit_s:g}",)
