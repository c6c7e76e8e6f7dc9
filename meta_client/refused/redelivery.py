"""The thread that offers refused messages to the listeners again, from time to time (spec 8.9)."""

import logging
import threading
from collections.abc import Callable, Mapping

from journal.errors import JournalError
from meta_client.consumer.assignments import Assignments
from meta_client.consumer.listening import MessageListener
from meta_client.protocol.errors import MetaError
from meta_client.refused.store import RefusedStore
from meta_client.refused.waiting import Waiting

FIRST_S = 5.0  # after the start, as the ancestor has it: what a mended program refused before is soon taken

_log = logging.getLogger(__name__)


class Redelivery:
    """Offers what waits in a store, first refused first, one message at a time. start() once, close() once.

    A message is never offered while another one of its partition is being delivered. Which member owns the
    partition by now does not matter: who refused a message keeps it. A filter is not asked.
    """

    def __init__(
        self,
        store: RefusedStore,
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
        """Begin."""
        self._thread.start()

    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def now(self) -> None:
        """Offer everything now. Any thread; does not wait."""
        self._wake.set()

    def close(self) -> None:
        """Wait for the listener to return, and end. Idempotent."""
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._wake.wait(min(FIRST_S, self._period_s))
        while not self._is_closed:
            self._wake.clear()
            try:
                self._offer_all()
            except (JournalError, MetaError) as error:
                _log.error("refused messages not offered, trying again group=%s error=%s", self._group, error)
            self._wake.wait(self._period_s)

    def _offer_all(self) -> None:
        taken = kept = 0
        for waiting in self._store.waiting():
            if self._is_closed:
                break
            if (listener := self._listener_of.get(waiting.place.topic)) is not None:
                if self._offer(waiting, listener):
                    taken += 1
                else:
                    kept += 1
        if taken or kept:
            _log.info("refused messages offered again group=%s taken=%d kept=%d", self._group, taken, kept)

    def _offer(self, waiting: Waiting, listener: Callable[..., object]) -> bool:
        place = waiting.place
        key = place.topic, place.partition
        if (message := self._store.message(place)) is None or not self._assignments.begin_extra(key):
            return False
        try:
            listener(message)
        except Exception as error:
            self._store.tried(place, error)
            _log.warning("refused again group=%s message=%s error=%r", self._group, place, error)
            return False
        finally:
            self._assignments.end_extra(key)
        self._store.delivered(place)
        return True
