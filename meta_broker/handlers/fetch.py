"""fetch: a get that waits for messages (extension, PROTOCOL.md).

A fetch that finds too little waits as a WaitingFetch. Publication at the high watermark, or one timer for all, ends the
wait: the connection completes it in its turn, under the same limits as any request. A peer that does not read gets
nothing more, however many of its fetches have been woken.
"""

import asyncio
from collections.abc import Iterable

from journal.records.record import PartitionName
from meta_broker.handlers.context import Context, Peer, WaitingFetch
from meta_broker.handlers.get import bad_size, closed, missed, outside, unknown_partition, visible_index
from meta_broker.handlers.message_reader import MessageReader, ReadAnswer, answer_line
from meta_broker.handlers.owners import Owned, OwnerEpochs
from meta_broker.handlers.realtime import Statistic
from meta_broker.handlers.waiting import WaitingFetches
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OFFSET_END, Fetch
from meta_client.protocol.status import Status


class FetchHandler:
    """Answers fetches, at once or when there are messages. Loop thread only."""

    def __init__(self, context: Context, reading: MessageReader) -> None:
        section = context.config.broker
        self._context = context
        self._reading = reading
        self._wait_ms_max = section.fetch_wait_ms_max
        self._waiting = WaitingFetches(section.fetches_waiting_max, section.fetches_waiting_per_connection_max)
        self._owners = OwnerEpochs(section.owners_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0  # when it fires
        context.store.watch(self._waiting.by_partition, self._published)

    def handle(self, fetch: Fetch, peer: Peer) -> None:
        """Answer *fetch*, or begin its wait."""
        if fetch.wait_ms > 0 and (end_wanted := self._end_to_wait_for(fetch)) is not None:
            if (reason := self._waiting.why_full(peer)) is None:
                name, due_ms = _name(fetch), self._now_ms() + min(fetch.wait_ms, self._wait_ms_max)
                self._context.times.defer()  # measured from the end of its wait
                self._waiting.add(WaitingFetch(fetch, peer, name, end_wanted, due_ms))
                peer.end_in_flight()
                self._set_timer()
                return
            if fetch.offset == self._end_offset(_name(fetch)):
                self._count(fetch)
                missed(self._context, fetch)
                peer.send(encode_result(Status.UNAVAILABLE, reason.encode(), fetch.opaque))
                return
        self._reading.answer(fetch, peer, self._look_up)

    def complete(self, waiting: WaitingFetch, peer: Peer) -> None:
        """Answer a fetch whose wait is over with what there is."""
        self._reading.answer(waiting.fetch, peer, self._look_up)

    def _look_up(self, fetch: Fetch) -> ReadAnswer:
        """Return the answer at this moment, and count it: it is looked up again if this raises IndexCold or
        ArchiveCold."""
        index = visible_index(self._context, _name(fetch))
        answer: ReadAnswer | None = self._rejection(fetch, index)
        if answer is None:
            if index is None or fetch.offset == index.end:
                answer = answer_line(self._context, fetch, 0, fetch.offset)
            elif (found := self._reading.index_at(_name(fetch), index, fetch.offset)) is not None:
                answer = self._reading.messages(fetch, found, index)
            else:
                answer = outside(self._context, fetch, self._reading.start_of(_name(fetch), index), index.end)
        if isinstance(answer, bytes):
            missed(self._context, fetch)
        self._count(fetch)
        return answer

    def _rejection(self, fetch: Fetch, index: PartitionIndex | None) -> bytes | None:
        """Return the reply to an invalid fetch; None: it is valid."""
        context, name = self._context, _name(fetch)
        if context.topics.is_closed(*name):
            return closed(context, fetch)
        if index is None and not context.topics.offers(*name):
            return unknown_partition(fetch)
        if fetch.bytes_max <= 0:
            return bad_size(fetch)
        if fetch.epoch is not None and (stale := self._stale(fetch, fetch.epoch, name)) is not None:
            return stale
        start, end = (index.start, index.end) if index is not None else (0, 0)
        if context.store.tier is not None and fetch.offset < start:
            return None  # the look-up asks the archive
        return None if start <= fetch.offset <= end else outside(context, fetch, start, end)

    def _end_to_wait_for(self, fetch: Fetch) -> int | None:
        """Return the end of the partition that gives *fetch* all it wants; None: it has that, or is invalid."""
        index = visible_index(self._context, _name(fetch))
        if self._rejection(fetch, index) is not None:
            return None
        wanted = fetch.offset + min(fetch.bytes_min, fetch.bytes_max, self._context.config.broker.transfer_bytes_max)
        return wanted if wanted > (index.end if index is not None else 0) else None

    def _end_offset(self, name: PartitionName) -> int:
        index = self._context.store.indexes.by_name.get(name)
        return index.end if index is not None else 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def release(self, peer: Peer, woken: Iterable[WaitingFetch]) -> list[bytes]:
        """Return empty replies to the waiting fetches of *peer*, whose connection is about to end, and to *woken*."""
        released = [*woken, *self._waiting.pop_of_peer(peer)]
        return [answer_line(self._context, each.fetch, 0, self._end_offset(each.name)) for each in released]

    def peer_closed(self, peer: Peer) -> None:
        self._waiting.pop_of_peer(peer)

    def wake(self, topic: str) -> None:
        """End the waits for *topic*, after a decision about it."""
        for name in [name for name in self._waiting.by_partition if name.topic == topic]:
            _wake(self._waiting.pop_reached(name, OFFSET_END))

    def _stale(self, fetch: Fetch, epoch: int, name: PartitionName) -> bytes | None:
        """Return the reply to a fetch of a stale owner; None: it is not stale. A new owner ends the waits of earlier
        ones.
        """
        owned = Owned(fetch.group, name)
        former, highest = self._owners.known(owned), self._owners.seen(owned, epoch)
        if epoch == highest:
            if former is not None and former < epoch:
                _wake(self._waiting.pop_stale(name, fetch.group, epoch))
            return None
        text = (
            f"{highest} is the epoch of who owns partition {name.partition} of topic {name.topic} for group "
            f"{fetch.group}, not {epoch}: give it up and rebalance"
        )
        return encode_result(Status.STALE_OWNER, text.encode(), fetch.opaque)

    def _count(self, fetch: Fetch) -> None:
        self._context.counters.gets += 1
        self._context.count(Statistic.GET, fetch.topic)

    def _published(self, name: PartitionName) -> None:
        """Wake the fetches that wait for new messages of a partition."""
        _wake(self._waiting.pop_reached(name, self._end_offset(name)))

    def _ring(self) -> None:
        self._timer = None
        _wake(self._waiting.pop_due(self._now_ms()))
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = self._waiting.next_due_ms
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return  # a timer that fires too early is set again
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, due_ms - self._now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)
        self._timer_ms = due_ms

    def _now_ms(self) -> int:
        return int(self._context.clock() * 1000)


def _wake(ended: Iterable[WaitingFetch]) -> None:
    for waiting in ended:
        waiting.peer.enqueue(waiting)


def _name(fetch: Fetch) -> PartitionName:
    return PartitionName(fetch.topic, fetch.partition)
