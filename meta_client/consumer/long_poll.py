"""A long poll: a fetch that waits at its broker, without a thread."""

import time
from dataclasses import dataclass, field

from meta_client.errors import ReplyTimeout
from meta_client.net.calls import checked_data
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.protocol.responses import Data

EARLY = 0.5  # an empty answer after less than this part of the wait is early


@dataclass(slots=True, eq=False)
class LongPoll:
    """A long poll in progress, or its outcome."""

    connection: Transport
    opaque: int
    wait_s: float
    started_at: float = field(default_factory=lambda: time.monotonic())
    waited_s: float = 0.0  # once it has ended
    outcome: PendingReply | Exception | None = None  # answer, or why it was not sent; None: it expired

    def is_overdue(self, patience_s: float) -> bool:
        """Return True if it should have ended *patience_s* ago."""
        return self.started_at + self.wait_s + patience_s <= time.monotonic()

    def complete(self, outcome: PendingReply | Exception | None) -> None:
        self.outcome, self.waited_s = outcome, time.monotonic() - self.started_at

    def abandon(self) -> None:
        """Ignore a late answer."""
        self.connection.abandon(self.opaque)

    def data(self, what: str) -> Data:
        """Return the answer. Raises as checked_data and submit, and ReplyTimeout."""
        match self.outcome:
            case None:
                raise ReplyTimeout(
                    f"{what}: no answer within {self.waited_s:.1f} s, though the broker sends heartbeats"
                )
            case Exception():
                raise self.outcome
            case _:
                return checked_data(self.outcome.wait(0), what)

    @property
    def is_early(self) -> bool:
        """True if the broker answered early: an empty answer is then no reason to poll again at once."""
        return self.waited_s < self.wait_s * EARLY
