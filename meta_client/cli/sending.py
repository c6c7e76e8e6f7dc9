"""Sends many messages and keeps count of stored ones, also after a failure."""

import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from queue import SimpleQueue
from typing import Final

import click

from meta_client.cli.inputs import Item
from meta_client.errors import NotReplicated, ReplyTimeout, SendFailed, SendUnknown
from meta_client.producer.producer import Producer
from meta_client.producer.results import Handle, SendResult
from meta_client.protocol.errors import MetaError
from zk.tree.nodes import Partition

UNDER_WAY_MAX: Final = 10_000  # unacknowledged messages
SETTLE_S: Final = 5.0  # extra time for an answer after a message's time-out


class Stopped(MetaError):
    """Sending ended early. The message says how many messages are stored, and why it ended."""


class NotYetReplicated(click.ClickException):
    """Sending ended early; everything sent is on the master, some of it not yet on a slave in sync."""

    exit_code = 3


class SendReport(StrEnum):
    """Outcome of a message, as printed by --json."""

    STORED = "stored"
    NOT_REPLICATED = "not_replicated"  # on the master; visible once a slave is in sync, lost with the master before
    UNKNOWN = "unknown"  # stored or not
    NOT_STORED = "not_stored"

    @classmethod
    def of(cls, told: SendResult | MetaError) -> "SendReport":
        match told:
            case NotReplicated():
                return cls.NOT_REPLICATED
            case SendUnknown() | ReplyTimeout():
                return cls.UNKNOWN
            case MetaError():
                return cls.NOT_STORED
        return cls.STORED


_NOT_STORED: Final = {  # after "stopped after 3 messages, which are stored"
    SendReport.NOT_REPLICATED: "; {} more are on the master and not yet replicated: consumers see them once a slave is "
    "in sync, unless the master is lost before, and sending them again may double them",
    SendReport.UNKNOWN: "; {} more may be stored or not, no answer came",
    SendReport.NOT_STORED: "; {} are not",
}


class Sending:
    """Messages of one topic being sent, in order. send() and then stop(), on one thread.

    A separate thread handles the outcomes, so that they are shown even while input is awaited.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition: Partition | None,
        timeout_s: float,
        show: Callable[[Item, SendResult | MetaError], None],
    ) -> None:
        """*timeout_s*: the client's time limit per message; *show* gets each message's outcome, in order."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._settle_s = timeout_s + SETTLE_S
        self._show = show
        # Of C: a Queue that a ^C interrupts may stay locked, and stop() would wait for good.
        self._under_way: SimpleQueue[tuple[Handle, Item] | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(UNDER_WAY_MAX):
            self._room.put(None)
        self._listener = threading.Thread(target=self._listen, name="metaq produce", daemon=True)
        # The listener's, which others only read.
        self._outcomes: Counter[SendReport] = Counter()
        self._first: str | None = None  # the first failure
        self._output: str | None = None  # why outcomes can't be shown
        self._listener.start()

    @property
    def stored(self) -> int:
        return self._outcomes[SendReport.STORED]

    @property
    def has_failed(self) -> bool:
        """True if any message has failed, or outcomes can't be shown."""
        return self._first is not None or self._output is not None

    def send(self, item: Item) -> None:
        """Send one more; waits while too many are unacknowledged. Raises MetaError for a message that can't be sent at
        all."""
        self._room.get()
        try:
            handle = self._producer.send_async(self._topic, item.payload, item.attribute, self._partition)
        except MetaError as error:
            raise Stopped(f"{item.where}: {error}") from error
        self._under_way.put((handle, item))

    def stop(self, why: str | None) -> None:
        """Wait for unacknowledged messages. Raises Stopped if there is a reason *why* to stop early, a message failed
        or its outcome can't be shown, NotYetReplicated if too late a replication is the only failure."""
        self._under_way.put(None)
        self._listener.join()
        why = why or self._output
        if (reason := self._first or why) is None:
            return
        text = f"stopped after {self.stored} messages, which are stored"
        for outcome, more in _NOT_STORED.items():
            if count := self._outcomes[outcome]:
                text += more.format(count)
        if why is None and not self._outcomes.keys() - {SendReport.STORED, SendReport.NOT_REPLICATED}:
            raise NotYetReplicated(f"{text}: {reason}")
        raise Stopped(f"{text}: {reason}")

    def _listen(self) -> None:
        timeout_s = self._settle_s
        while (sent := self._under_way.get()) is not None:
            handle, item = sent
            self._room.put(None)
            told: SendResult | MetaError
            try:
                told = handle.result(timeout_s)
            except (SendFailed, ReplyTimeout) as error:
                if isinstance(error, ReplyTimeout):
                    timeout_s = 0  # one time-out covers all: they were sent before
                self._first = self._first or f"{item.where}: {error}"
                told = error
            self._outcomes[SendReport.of(told)] += 1
            if self._output is None:
                try:
                    self._show(item, told)
                except OSError as error:
                    self._output = f"standard output: {error.strerror or error}"
