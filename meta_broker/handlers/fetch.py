"""fetch: a get that waits for messages (extension, PROTOCOL.md).

A fetch that finds too little is kept; publication at the high watermark, or one timer for all, puts it back into the
connection's queue, without its wait. It is answered under the same limits as any request: a peer that does not read
gets nothing more, however many of its fetches have been woken.
"""

import asyncio
import functools
import time

from journal.records.record import PartitionName
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.filtered_reader import FilteredReader
from meta_broker.handlers.get import bad_size, closed, in_gap, missed, outside, unknown_partition, visible_index
from meta_broker.handlers.message_reader import MessageReader
from meta_broker.handlers.owners import Owned, OwnerEpochs
from meta_broker.handlers.read_from import answer_line
from meta_broker.handlers.realtime import Statistic
from meta_broker.handlers.waiting import WaitingFetch, WaitingFetches
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OFFSET_END, Fetch
from meta_client.protocol.status import Status


class FetchHandler:
    """Answers fetches, at once or when there are messages. Loop thread only."""

    def __init__(self, context: Context, reading: MessageReader, filtering: FilteredReader) -> None:
        section = context.config.broker
        self._context = context
        self._reading = reading
        self._filtering = filtering
        self._wait_ms_max = section.fetch_wait_ms_max
        self._waiting = WaitingFetches(section.fetches_waiting_max, section.fetches_waiting_per_connection_max)
        self._owners = OwnerEpochs(section.owners_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0  # when it fires
        context.store.watch(self._waiting.by_partition, self._published)

    def handle(self, fetch: Fetch, peer: Peer) -> None:
        context = self._context
        name = PartitionName(fetch.topic, fetch.partition)
        if context.topics.is_closed(*name):
            self._reject(fetch, peer, closed(context, fetch))
            return
        index = visible_index(context, name)
        if index is None and not context.topics.offers(*name):
            self._reject(fetch, peer, unknown_partition(fetch))
            return
        if fetch.bytes_max <= 0:
            self._reject(fetch, peer, bad_size(fetch))
            return
        if fetch.epoch is not None and (answer := self._stale(fetch, fetch.epoch, name)) is not None:
            self._reject(fetch, peer, answer)
            return
        start, end = (index.start, index.end) if index is not None else (0, 0)
        if not start <= fetch.offset <= end:
            self._reject(fetch, peer, outside(context, fetch, start, end))
            return
        bytes_max = min(fetch.bytes_max, context.config.broker.transfer_bytes_max)
        bytes_wanted = min(fetch.bytes_min, bytes_max)
        if end - fetch.offset < bytes_wanted and fetch.wait_ms > 0:
            if (reason := self._waiting.why_full(peer)) is None:
                self._wait(WaitingFetch(fetch, peer, name, fetch.offset + bytes_wanted, self._due_ms(fetch)))
                return
            if fetch.offset == end:
                self._reject(fetch, peer, encode_result(Status.UNAVAILABLE, reason.encode(), fetch.opaque))
                return
        if index is None or fetch.offset == end:
            self._count(fetch)
            missed(context, fetch)
            peer.send(answer_line(context, fetch, 0, end))
            return
        if (filter_name := self._filtering.name_for(fetch)) is not None:
            self._count(fetch)
            fetch.wait_ms = 0  # do not wait again, even if the messages are gone when its turn comes
            retry = functools.partial(self.handle, fetch, peer)
            self._filtering.submit(filter_name, fetch, index, bytes_max, peer, retry)
            return
        if not self._reading.answer(fetch, index, bytes_max, peer):
            answer = in_gap(index, fetch)
            missed(context, fetch)
            peer.send(answer)
        self._count(fetch)  # only now: IndexCold above would have it handled again

    @property
    def waiting(self) -> int:
        """Number of waiting fetches."""
        return len(self._waiting)

    def release(self, peer: Peer) -> list[bytes]:
        """Return empty replies to the waiting fetches of *peer*, whose connection is about to end."""
        answers = []
        for waiting in self._waiting.pop_of_peer(peer):
            index = self._context.store.indexes.by_name.get(waiting.name)
            end = index.end if index is not None else 0
            answers.append(answer_line(self._context, waiting.fetch, 0, end))
        return answers

    def peer_closed(self, peer: Peer) -> None:
        """Discard the waiting fetches of a closed connection."""
        self._waiting.pop_of_peer(peer)

    def wake(self, topic: str) -> None:
        """Answer the fetches that wait for *topic*, after a decision about it."""
        for name in [name for name in self._waiting.by_partition if name.topic == topic]:
            self._go_on(self._waiting.pop_reached(name, OFFSET_END))

    def _stale(self, fetch: Fetch, epoch: int, name: PartitionName) -> bytes | None:
        """Return the reply to a fetch of a stale owner; None: it is not stale. A new owner ends the waits of earlier
        ones.
        """
        owned = Owned(fetch.group, name)
        former, highest = self._owners.known(owned), self._owners.seen(owned, epoch)
        if epoch == highest:
            if former is not None and former < epoch:
                self._go_on(self._waiting.pop_stale(name, fetch.group, epoch))
            return None
        text = (
            f"{highest} is the epoch of who owns partition {name.partition} of topic {name.topic} for group "
            f"{fetch.group}, not {epoch}: give it up and rebalance"
        )
        return encode_result(Status.STALE_OWNER, text.encode(), fetch.opaque)

    def _reject(self, fetch: Fetch, peer: Peer, answer: bytes) -> None:
        self._count(fetch)
        missed(self._context, fetch)
        peer.send(answer)

    def _count(self, fetch: Fetch) -> None:
        self._context.counters.gets += 1
        self._context.count(Statistic.GET, fetch.topic)

    def _due_ms(self, fetch: Fetch) -> int:
        return _now_ms() + min(fetch.wait_ms, self._wait_ms_max)

    def _wait(self, waiting: WaitingFetch) -> None:
        self._waiting.add(waiting)
        waiting.peer.end_in_flight()
        self._set_timer()

    def _published(self, name: PartitionName) -> None:
        """Wake the fetches that wait for new messages of a partition."""
        end = self._context.store.indexes.by_name[name].end
        self._go_on(self._waiting.pop_reached(name, end))

    def _ring(self) -> None:
        self._timer = None
        self._go_on(self._waiting.pop_due(_now_ms()))
        self._set_timer()

    def _go_on(self, ended: list[WaitingFetch]) -> None:
        for waiting in ended:
            waiting.fetch.wait_ms = 0
            waiting.peer.requeue(waiting.fetch)

    def _set_timer(self) -> None:
        due_ms = self._waiting.next_due_ms
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return  # a timer that fires too early is set again
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, due_ms - _now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)
        self._timer_ms = due_ms


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
