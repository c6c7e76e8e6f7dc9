"""Sending many messages and knowing, whatever happens, how many of them are stored."""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Final

from meta_client.cli.inputs import Item
from meta_client.errors import ReplyTimeout, SendFailed, SendUnknown
from meta_client.producer import Handle, Producer
from meta_client.protocol.errors import MetaError
from meta_client.results import SendResult
from zk.nodes import Partition

UNDER_WAY_MAX: Final = 10_000  # messages that are not acknowledged yet
SETTLE_S: Final = 5.0  # for the answer to a message, beyond the time after which it is given up


class Stopped(MetaError):
    """Sending ended early. The message says how many messages are stored, and why it ended."""


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
        show: Callable[[Item, SendResult], None],
    ) -> None:
        """*timeout_s*: when the client gives a message up; *show* is told of each that is stored, in their order."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._settle_s = timeout_s + SETTLE_S
        self._show = show
        self._under_way: Queue[tuple[Handle, Item] | None] = Queue(UNDER_WAY_MAX)
        self._listener = threading.Thread(target=self._listen, name="metaq produce", daemon=True)
        # The listener's, which others only read.
        self.stored = 0
        self._unknown = 0
        self._refused = 0
        self._first: str | None = None  # what went wrong first
        self._interruption: OSError | None = None  # whoever reads what we show went away
        self._listener.start()

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
        failed, and the OSError of showing."""
        self._under_way.put(None)
        self._listener.join()
        if self._interruption is not None:
            raise self._interruption
        if (reason := self._first or why) is None:
            return
        text = f"stopped after {self.stored} messages, which are stored"
        if self._unknown:
            text += f"; {self._unknown} more may be stored or not, no answer came"
        if self._refused:
            text += f"; {self._refused} are not"
        raise Stopped(f"{text}: {reason}")

    def _listen(self) -> None:
        timeout_s = self._settle_s
        while (sent := self._under_way.get()) is not None:
            handle, item = sent
            try:
                result = handle.result(timeout_s)
            except (SendFailed, ReplyTimeout) as error:
                if isinstance(error, ReplyTimeout):
                    timeout_s = 0  # the others were sent as long ago
                if isinstance(error, SendUnknown | ReplyTimeout):
                    self._unknown += 1
                else:
                    self._refused += 1
                self._first = self._first or f"{item.where}: {error}"
                continue
            self.stored += 1
            if self._interruption is None:
                try:
                    self._show(item, result)
                except OSError as error:  # stop() raises it, on the command's thread
                    self._interruption = error
