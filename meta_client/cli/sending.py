"""Sending many messages and knowing, whatever happens, how many of them are stored."""

import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from queue import Queue
from typing import Final

import click

from meta_client.cli.inputs import Item
from meta_client.errors import NotReplicated, ReplyTimeout, SendFailed, SendUnknown
from meta_client.producer import Handle, Producer
from meta_client.protocol.errors import MetaError
from meta_client.results import SendResult
from zk.nodes import Partition

UNDER_WAY_MAX: Final = 10_000  # messages that are not acknowledged yet
SETTLE_S: Final = 5.0  # for the answer to a message, beyond the time after which it is given up


class Stopped(MetaError):
    """Sending ended early. The message says how many messages are stored, and why it ended."""


class NotYetReplicated(click.ClickException):
    """Sending ended early, and everything that was sent is on the master, some of it not yet on a slave in sync."""

    exit_code = 3


class Outcome(StrEnum):
    """Outcome of a message, in the words of --json."""

    STORED = "stored"
    NOT_REPLICATED = "not_replicated"  # on the master; seen once a slave is in sync, lost if the master is before
    UNKNOWN = "unknown"  # stored or not
    NOT_STORED = "not_stored"

    @classmethod
    def of(cls, told: SendResult | MetaError) -> "Outcome":
        match told:
            case NotReplicated():
                return cls.NOT_REPLICATED
            case SendUnknown() | ReplyTimeout():
                return cls.UNKNOWN
            case MetaError():
                return cls.NOT_STORED
        return cls.STORED


_TOLD: Final = {  # after "stopped after 3 messages, which are stored"
    Outcome.NOT_REPLICATED: "; {} more are on the master and not yet replicated: consumers see them once a slave is in "
    "sync, unless the master is lost before, and sending them again may double them",
    Outcome.UNKNOWN: "; {} more may be stored or not, no answer came",
    Outcome.NOT_STORED: "; {} are not",
}


class Sending:
    """Messages of one topic on their way, in their order. send() and then stop(), on one thread.

    A thread of its own hears what becomes of them: whoever waits for input is told of what was sent before.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition: Partition | None,
        timeout_s: float,
        show: Callable[[Item, SendResult | MetaError], None],
    ) -> None:
        """*timeout_s*: when the client gives a message up; *show* is told what became of each, in their order."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._settle_s = timeout_s + SETTLE_S
        self._show = show
        self._under_way: Queue[tuple[Handle, Item] | None] = Queue(UNDER_WAY_MAX)
        self._listener = threading.Thread(target=self._listen, name="metaq produce", daemon=True)
        # The listener's, which others only read.
        self._outcomes: Counter[Outcome] = Counter()
        self._first: str | None = None  # what went wrong first
        self._interruption: OSError | None = None  # whoever reads what we show went away
        self._listener.start()

    @property
    def stored(self) -> int:
        """Number of messages that are."""
        return self._outcomes[Outcome.STORED]

    @property
    def has_failed(self) -> bool:
        """Whether anything that was sent has."""
        return self._first is not None or self._interruption is not None

    def send(self, item: Item) -> None:
        """Send one more; waits while too many are under way. Raises MetaError for what can't be sent at all."""
        try:
            handle = self._producer.send_async(self._topic, item.payload, item.attribute, self._partition)
        except MetaError as error:
            raise Stopped(f"{item.where}: {error}") from error
        self._under_way.put((handle, item))

    def stop(self, why: str | None) -> None:
        """Wait for what is under way. Raises Stopped if there is a reason *why* to stop early, or if any of it
        failed, NotYetReplicated if that is the only failure, and the OSError of showing."""
        self._under_way.put(None)
        self._listener.join()
        if self._interruption is not None:
            raise self._interruption
        if (reason := self._first or why) is None:
            return
        text = f"stopped after {self.stored} messages, which are stored"
        text += "".join(told.format(count) for outcome, told in _TOLD.items() if (count := self._outcomes[outcome]))
        if why is None and not self._outcomes.keys() - {Outcome.STORED, Outcome.NOT_REPLICATED}:
            raise NotYetReplicated(f"{text}: {reason}")
        raise Stopped(f"{text}: {reason}")

    def _listen(self) -> None:
        timeout_s = self._settle_s
        while (sent := self._under_way.get()) is not None:
            handle, item = sent
            told: SendResult | MetaError
            try:
                told = handle.result(timeout_s)
            except (SendFailed, ReplyTimeout) as error:
                if isinstance(error, ReplyTimeout):
                    timeout_s = 0  # the others were sent as long ago
                self._first = self._first or f"{item.where}: {error}"
                told = error
            self._outcomes[Outcome.of(told)] += 1
            if self._interruption is None:
                try:
                    self._show(item, told)
                except OSError as error:  # stop() raises it, on the command's thread
                    self._interruption = error
