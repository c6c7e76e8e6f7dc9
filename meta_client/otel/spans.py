"""Spans by OpenTelemetry, named by its semantic conventions for messaging. Imported by `enable_tracing` alone."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import context as current
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from journal.records.xid import BranchKey, XaKey
from meta_client.consumer.listener_exit import is_coroutine_function
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.coordinator.steps import TwoPhaseStep
from meta_client.protocol.trace_context import split_traceparent, with_traceparent
from meta_client.tracing import TransactionSpans
from meta_client.transactions.steps import CommitStep

LINKS_MAX: Final = 128  # OpenTelemetry's own limit
SYSTEM: Final = {"messaging.system": "metaq"}
XID: Final = "messaging.metaq.xid"
GTRID: Final = "messaging.metaq.gtrid"
# What has happened once a step is reached; the rest belongs to the next of these.
STEPS: Final[Mapping[CommitStep | TwoPhaseStep, str]] = {
    TwoPhaseStep.PREPARED_DATABASE: "prepare",
    TwoPhaseStep.DECIDED: "decide",
    TwoPhaseStep.COMMITTED_BROKER: "commit",
    TwoPhaseStep.ROLLED_BACK: "roll back",
    CommitStep.PREPARED: "prepare",
    CommitStep.DECIDED: "decide",
    CommitStep.COMMIT_SENT: "commit",
    CommitStep.ROLLED_BACK: "roll back",
}
_is_sending: ContextVar[bool] = ContextVar("metaq is sending", default=False)


class OpenTelemetryHooks:
    """Makes spans with one tracer. Any thread."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer: Tracer = get_tracer("metaq", tracer_provider=provider)

    @contextmanager
    def sending(self, topic: str) -> Iterator[None]:
        with self._tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=_sent(topic)):
            token = _is_sending.set(True)
            try:
                yield
            finally:
                _is_sending.reset(token)

    def attribute(self, topic: str, attribute: str | None) -> str | None:
        if attribute is not None and split_traceparent(attribute)[1] is not None:
            return attribute
        if _is_sending.get():
            span = get_current_span()
        else:  # its answer comes to a handle, or with PREPARE
            span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=_sent(topic))
            span.end()
        sent = span.get_span_context()
        if not sent.is_valid:  # without an SDK
            return attribute
        return with_traceparent(attribute, f"00-{sent.trace_id:032x}-{sent.span_id:016x}-{sent.trace_flags:02x}")

    def listener(self, group: str, function: Callable[[Any], object]) -> Callable[[Any], object]:
        if is_coroutine_function(function):

            @functools.wraps(function)
            async def listen(delivered: ReceivedMessage | Batch) -> object:
                with self._processing(group, delivered):
                    return await function(delivered)  # type: ignore[misc]  # a coroutine function

            return listen

        @functools.wraps(function)
        def listen_plainly(delivered: ReceivedMessage | Batch) -> object:
            with self._processing(group, delivered):
                return function(delivered)

        return listen_plainly

    @contextmanager
    def _processing(self, group: str, delivered: ReceivedMessage | Batch) -> Iterator[Span]:
        messages = delivered.messages if isinstance(delivered, Batch) else [delivered]
        parent = remote(messages[0].traceparent) if len(messages) == 1 else None
        with self._tracer.start_as_current_span(
            f"process {messages[0].topic}",
            None if parent is None else set_span_in_context(NonRecordingSpan(parent)),
            SpanKind.CONSUMER,
            _received("process", group, messages),
            links_to(messages),
        ) as span:
            yield span

    def received(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        by_topic: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, some in by_topic.items():
            attributes = _received("receive", group, some)
            self._tracer.start_span(
                f"receive {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links_to(some)
            ).end()

    def transaction(self, gtrid: str) -> TransactionSpans:
        return OpenTelemetryTransaction(self._tracer, gtrid)

    @contextmanager
    def branch_verb(self, verb: str, xid: XaKey) -> Iterator[None]:
        attributes = SYSTEM | {"messaging.operation.name": verb, GTRID: gtrid_of(xid), XID: str(xid)}
        with self._tracer.start_as_current_span(verb, None, SpanKind.CLIENT, attributes):
            yield

    @contextmanager
    def recovering(self, xid: XaKey, traceparent: str | None) -> Iterator[None]:
        parent = remote(traceparent)
        within = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        attributes = SYSTEM | {"messaging.operation.name": "recover", GTRID: gtrid_of(xid), XID: str(xid)}
        with self._tracer.start_as_current_span("recover", within, SpanKind.CLIENT, attributes):
            yield

    def stored(
        self, name: str, traceparent: str, began_ns: int, broker_id: int, topic: str | None, key: BranchKey | None
    ) -> None:
        attributes: dict[str, AttributeValue] = {**SYSTEM, "messaging.metaq.broker.id": broker_id}
        if topic is not None:
            attributes["messaging.destination.name"] = topic
        if isinstance(key, XaKey):
            attributes |= {GTRID: gtrid_of(key), XID: str(key)}
        parent = remote(traceparent)
        assert parent is not None
        within = set_span_in_context(NonRecordingSpan(parent))
        self._tracer.start_span(name, within, SpanKind.SERVER, attributes, start_time=began_ns).end()


class OpenTelemetryTransaction:
    """Spans of one transaction's steps, as children of the span that was current when it began."""

    def __init__(self, tracer: Tracer, gtrid: str) -> None:
        self._tracer = tracer
        self._gtrid = gtrid
        self._within: Context = current.get_current()
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        """Take the time at which the first step begins."""
        self._began_ns = time.time_ns()

    def reached(self, step: CommitStep | TwoPhaseStep) -> None:
        """Make the span of what led to *step*."""
        if (name := STEPS.get(step)) is None:
            return
        attributes = SYSTEM | {"messaging.operation.name": name, GTRID: self._gtrid}
        span = self._tracer.start_span(name, self._within, SpanKind.CLIENT, attributes, start_time=self._began_ns)
        self._began_ns = time.time_ns()
        span.end(self._began_ns)


def gtrid_of(xid: XaKey) -> str:
    return xid.xid.gtrid.decode(errors="backslashreplace")


def remote(traceparent: str | None) -> SpanContext | None:
    """Return the span of a message that was sent, from its trace context."""
    if traceparent is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def links_to(messages: Sequence[ReceivedMessage]) -> list[Link]:
    found = (remote(message.traceparent) for message in messages)
    return [Link(sent) for sent in found if sent is not None][:LINKS_MAX]


def _sent(topic: str) -> Mapping[str, str]:
    return SYSTEM | {
        "messaging.destination.name": topic,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }


def _received(operation: str, group: str, messages: Sequence[ReceivedMessage]) -> Mapping[str, AttributeValue]:
    first = messages[0]
    found: dict[str, AttributeValue] = {
        **SYSTEM,
        "messaging.destination.name": first.topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.consumer.group.name": group,
        "messaging.destination.partition.id": str(first.partition),
    }
    if len(messages) > 1:
        return found | {"messaging.batch.message_count": len(messages)}
    return found | {
        "messaging.message.id": str(first.message_id),
        "messaging.metaq.offset": first.offset,
        "messaging.message.body.size": len(first.payload),
    }
