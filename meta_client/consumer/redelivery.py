"""Redelivery thread: delivers dead letters to the listeners again, from time to time (spec 8.9)."""

import logging
import threading
from collections.abc import Callable, Mapping

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.dead_letters.index import DeadLetterEntry
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.listening import MessageListener

FIRST_S = 5.0  # after the start, as in the ancestor: a repaired program soon gets what it rejected before

_log = logging.getLogger(__name__)


class Redelivery:
    """Redelivers the dead letters of a store, oldest first, one at a time. Call start() once, close() once.

    A message is not redelivered while another one of its partition is being delivered. The partition's present owner
    does not matter: the member that rejected a message keeps it. Filters are not applied.
    """

    def __init__(
        self,
        store: DeadLetterStore,
        assignments: Assignments,
        listener_of: Mapping[str, MessageListener],
        period_s: float,
        group: str,
    ) -> None:
        self._store = store
        self._assignments = assignments
        self._listener_of = listener_of
        self._period_s = period_s
        self._group = group
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"metaq {group} redelivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def now(self) -> None:
        """Redeliver everything now. Any thread; does not wait."""
        self._wake.set()

    def close(self) -> None:
        """Wait for the listener to return, and end the thread. Idempotent."""
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._wake.wait(min(FIRST_S, self._period_s))
        while True:
            self._wake.clear()
            if self._is_closed:  # after clear(), which may have undone the call of close()
                return
            self._offer_all()
            self._wake.wait(min(self._period_s, threading.TIMEOUT_MAX))

    def _offer_all(self) -> None:
        taken = kept = 0
        for entry in self._store.entries():
            if self._is_closed:
                break
            if (failure := self._store.failure) is not None:
                _log.error("no dead letters offered until the restart group=%s error=%s", self._group, failure)
                break
            if (listener := self._listener_of.get(entry.address.topic)) is not None:
                try:
                    is_taken = self._offer(entry, listener)
                except Exception as error:  # any error: it must not end the thread, nor keep back the others
                    _log.error(
                        "dead letter not offered, trying again group=%s message=%s error=%r",
                        *(self._group, entry.address, error),
                    )
                    is_taken = False
                taken, kept = taken + is_taken, kept + (not is_taken)
        if taken or kept:
            _log.info("dead letters offered again group=%s taken=%d kept=%d", self._group, taken, kept)

    def _offer(self, entry: DeadLetterEntry, listener: Callable[..., object]) -> bool:
        address = entry.address
        key = address.topic, address.partition
        if (message := self._store.message(address)) is None or not self._assignments.begin_redelivery(key):
            return False
        try:
            listener(message)
        except Exception as error:
            self._store.tried(address, error)
            _log.warning("rejected again group=%s message=%s error=%r", self._group, address, error)
            return False
        finally:
            self._assignments.end_redelivery(key)
        self._store.delivered(address)
        return True
