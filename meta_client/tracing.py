"""Place of a client's tracing, at which what sends, receives and commits looks. Empty until
meta_client.otel.enable_tracing fills it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from journal.records.xid import BranchKey, XaKey
    from meta_client.consumer.messages.received_message import ReceivedMessage
    from meta_client.coordinator.steps import TwoPhaseStep
    from meta_client.transactions.steps import CommitStep


class TransactionSpans(Protocol):
    """Spans of one transaction. Its owner's thread."""

    def begin(self) -> None:
        """The commit begins."""

    def reached(self, step: "CommitStep | TwoPhaseStep") -> None:
        """A step has happened."""


class Hooks(Protocol):
    """Makes spans. Any thread; raises nothing."""

    def sending(self, topic: str) -> AbstractContextManager[object]:
        """Span around a send that waits for its answer."""

    def attribute(self, topic: str, attribute: str | None) -> str | None:
        """Return the attribute of a message with the trace context of its send; one that has a context keeps it."""

    def listener(self, group: str, function: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return *function*, a listener, with a span around each call."""

    def received(self, group: str, messages: "Sequence[ReceivedMessage]") -> None:
        """Messages were handed out by fetch()."""

    def transaction(self, gtrid: str) -> TransactionSpans: ...

    def branch_verb(self, verb: str, xid: "XaKey") -> AbstractContextManager[object]:
        """Span around a verb that a producer sends for its own branch: tpc_prepare, tpc_commit, tpc_rollback."""

    def recovering(self, xid: "XaKey", traceparent: str | None) -> AbstractContextManager[object]:
        """Span around the end of a branch that its own process left. *traceparent*: of its first message."""

    def stored(
        self, name: str, traceparent: str, began_ns: int, broker_id: int, topic: str | None, key: "BranchKey | None"
    ) -> None:
        """A broker has stored what was sent with *traceparent*, and tells it now."""


class Tracing:
    """The hooks of this process; None: it makes no spans."""

    hooks: Hooks | None = None


TRACING: Final = Tracing()
