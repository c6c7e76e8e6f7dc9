"""Sending many messages at once, to the partitions chosen for them or into a transaction, and their one handle."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, overload

from meta_client.errors import ReplyTimeout, SendFailed
from meta_client.metadata.topology import TopicView
from meta_client.producer.interfaces import Adds, Gatherer
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import Outgoing, RoundRobin
from meta_client.producer.results import Handle, SendResult
from zk.tree.nodes import Partition


class FailedMessages(NamedTuple):
    """Messages, by their index in the call, that share a failure."""

    indexes: list[int]
    error: SendFailed


class SendResults(Sequence[SendResult]):
    """Places of many messages, in the order of the call; each is made when it is asked for. Immutable."""

    def __init__(self, parts: Sequence[RunPart], count: int) -> None:
        self._parts = parts
        self._count = count
        self._owner: list[tuple[int, int]] | None = None  # by message: its part, and its index there

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SendResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...
    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        if self._owner is None:
            owner = [(0, 0)] * self._count
            for number, part in enumerate(self._parts):
                for at, message in enumerate(part.indexes, part.first):
                    owner[message] = number, at
            self._owner = owner
        number, at = self._owner[index]
        return self._parts[number].batch.result_of(at)


class SendManyHandle:
    """Handle of many messages being sent. Any thread; dropping it does not stop them."""

    def __init__(self, parts: Sequence[RunPart], count: int) -> None:
        self._parts = parts
        self._count = count
        self.batches = list({id(part.batch): part.batch for part in parts}.values())  # with the messages, each once

    def __len__(self) -> int:
        return self._count

    @property
    def is_done(self) -> bool:
        """True if `result` would return or raise at once."""
        return all(batch.is_settled for batch in self.batches)

    def result(self, timeout_s: float | None = None) -> Sequence[SendResult]:
        """Wait until the broker has acknowledged all messages and return their places, in the order of the call.

        Raises the first SendFailed: `failures` tells which messages it, and others, concern. Raises ReplyTimeout after
        *timeout_s*: sending goes on then.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for batch in self.batches:
            try:
                batch.wait(None if until is None else until - time.monotonic())
            except ReplyTimeout:
                raise batch.not_settled(timeout_s) from None  # the whole time, not what was left of it
        if failures := self.failures():
            raise failures[0].error
        return SendResults(self._parts, self._count)

    def failures(self) -> list[FailedMessages]:
        """Return the messages that were not stored, or may not be, as far as they are settled: by error, the one with
        the first message first."""
        by_error: dict[int, FailedMessages] = {}
        for part in self._parts:
            if part.batch.is_settled and part.batch.failed_messages()[0]:
                for at, message in enumerate(part.indexes, part.first):
                    if (error := part.batch.failure_of(at)) is not None:
                        by_error.setdefault(id(error), FailedMessages([], error)).indexes.append(message)
        return sorted(by_error.values(), key=lambda failed: failed.indexes[0])


class JoinedHandle:
    """Handle of many messages within a transaction, each with its own handle. For the thread or task that owns it."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self.handles = handles

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def is_done(self) -> bool:
        """True if `result` would return or raise at once."""
        return all(handle.is_done for handle in self.handles)

    def result(self, timeout_s: float | None = None) -> Sequence[SendResult]:
        """Wait and raise like SendManyHandle.result."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        return [handle.result(None if until is None else until - time.monotonic()) for handle in self.handles]

    def failures(self) -> list[FailedMessages]:
        """Return the messages that failed, as far as they are done. One dooms its transaction, whose end says so."""
        found = []
        for index, handle in enumerate(self.handles):
            try:
                if handle.is_done:
                    handle.result(0)
            except SendFailed as error:
                found.append(FailedMessages([index], error))
        return found


def send_run(
    sender: Gatherer, topic: str, run: MessageRun, chosen: Sequence[Partition | None] | None
) -> SendManyHandle:
    """Send *run* by way of *sender*, each message to the partition that is *chosen* for it, if any. Raises as
    Sender.add_run."""
    if chosen is None:
        return SendManyHandle(sender.add_run(topic, None, run), len(run))
    places: defaultdict[Partition | None, list[int]] = defaultdict(list)
    for index, partition in enumerate(chosen):
        places[partition].append(index)
    parts: list[RunPart] = []
    for wanted, indexes in places.items():
        added = sender.add_run(topic, wanted, run.select(indexes))
        parts += [part._replace(indexes=[indexes[each] for each in part.indexes]) for part in added]
    return SendManyHandle(parts, len(run))


def add_run(
    within: Adds, view: TopicView, run: MessageRun, chosen: Sequence[Partition | None], choice: RoundRobin
) -> JoinedHandle:
    """Add the messages of *run* to a transaction, or branch. Raises what that raises."""
    return JoinedHandle(
        [
            within.add(Outgoing(view, flag, body, wanted, choice))
            for flag, body, wanted in zip(run.flags, run.bodies, chosen, strict=True)
        ]
    )
