"""One trace from an HTTP request through database and broker to the consumer; a crash's recovery joins it."""

import asyncio
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from journal.records.xid import XaKey, Xid
from meta_client import Batch, Client, ReceivedMessage, TransactionConfig, aio
from meta_client.consumer.config import ConsumerConfig
from meta_client.coordinator import Coordinator
from meta_client.errors import NoPartition
from meta_client.otel import disable_tracing, enable_tracing
from meta_client.producer.partitioners import ByAttribute
from meta_client.protocol.errors import XaError
from meta_client.protocol.trace_context import with_traceparent
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq, start_module
from tests.fixtures.reading import read_whole
from tests.fixtures.scrape import wait_for
from tests.meta_client.outbox.conftest import OutboxWorld
from tests.meta_client.transactions.conftest import World, do
from zk.embedded.chroot import Chroot

INBOUND = "00-{}-00f067aa0ba902b7-01"
CRASHING = "tests.meta_client.otel.crashing"
CRASHING_COORDINATOR = "tests.meta_client.otel.crashing_coordinator"
QUICK = ConsumerConfig(fetch_wait_s=0.2)


class Spans:
    """Exported spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str, trace: str | None = None) -> ReadableSpan:
        """The only span of that name, in *trace* if given: the brokers hold messages of other tests."""

        def found() -> list[ReadableSpan]:
            return [span for span in self.named(name) if trace in (None, trace_of(span))]

        (span,) = wait_for(found, bool)
        assert isinstance(span, ReadableSpan)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    enable_tracing(spans.provider)
    yield spans
    disable_tracing()


def trace_of(span: ReadableSpan) -> str:
    return f"{span.get_span_context().trace_id:032x}"  # type: ignore[union-attr]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id  # type: ignore[union-attr]


class Service(HTTPServer):
    """Stores an order and announces it, as a service with OpenTelemetry's own instrumentation does."""

    def __init__(self, world: World, client: Client, spans: Spans) -> None:
        tracer = spans.provider.get_tracer("service")

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                inbound = TraceContextTextMapPropagator().extract(
                    {name.lower(): value for name, value in self.headers.items()}
                )
                with (
                    tracer.start_as_current_span("POST /orders", inbound, SpanKind.SERVER),
                    closing(world.deciding.connect()) as connection,
                    client.transaction(connection) as transaction,
                ):
                    do(connection, "INSERT INTO numbers VALUES (1)")
                    transaction.send("orders", b"1", "customer-1")
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                del format, args

        super().__init__(("127.0.0.1", 0), Handler)


def test_one_trace_from_a_request_to_the_consumer_and_to_what_recovers(world: World, spans: Spans) -> None:
    received: list[ReceivedMessage] = []
    trace = uuid.uuid4().hex
    # The broker holds thousands of messages of other tests, perhaps.
    assert (
        run_metaq("groups", "reset", "billing", "orders", "--to", "latest", "--yes", "--zk", world.zookeeper).returncode
        == 0
    )

    def listen(message: ReceivedMessage) -> None:
        received.append(message)
        sender.send("invoices", b"for " + message.payload)

    with Client(world.zookeeper) as client, client.consumer("billing", config=QUICK) as consumer:
        sender = client.producer()
        consumer.subscribe("orders", on_message=listen)
        consumer.start()
        with Service(world, client, spans) as service:
            thread = threading.Thread(target=service.handle_request)
            thread.start()
            request = urllib.request.Request(
                f"http://127.0.0.1:{service.server_port}/", b"", {"traceparent": INBOUND.format(trace)}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 204
            thread.join()
        processed, invoiced = spans.one("process orders", trace), spans.one("send invoices", trace)
    server, sent = spans.one("POST /orders"), spans.one("send orders")
    prepared, decided, committed = spans.one("prepare"), spans.one("decide"), spans.one("commit")
    every = [server, sent, prepared, decided, committed, processed, invoiced]
    assert {trace_of(span) for span in every} == {trace}
    assert {parent_of(span) for span in (sent, prepared, decided, committed)} == {id_of(server)}
    assert parent_of(processed) == id_of(sent)
    assert parent_of(invoiced) == id_of(processed)
    assert [span.kind for span in (sent, processed, prepared)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    times = [(span.start_time or 0, span.end_time or 0) for span in (prepared, decided, committed)]
    assert all(began <= ended for began, ended in times)
    assert times[0][1] <= times[1][0] <= times[1][1] <= times[2][0]
    gtrids = {(span.attributes or {})["messaging.metaq.gtrid"] for span in (prepared, decided, committed)}
    assert len(gtrids) == 1
    told = processed.attributes or {}
    assert told["messaging.system"] == "metaq"
    assert told["messaging.destination.name"] == "orders"
    assert told["messaging.consumer.group.name"] == "billing"
    assert told["messaging.operation.type"] == "process"
    ours = [message for message in received if trace in (message.traceparent or "")]
    assert [message.attribute for message in ours] == ["customer-1"], "as it was sent"

    # A second order of the same request: its service dies once it is decided, and another one ends it.
    with closing(world.deciding.connect()) as connection:
        do(connection, "DELETE FROM numbers")
        connection.commit()
    inbound = INBOUND.format(trace)
    assert start_module(CRASHING, world.deciding.url, world.zookeeper, inbound, "DECIDED").wait() == -9
    config = TransactionConfig(age_s=0.1, interval_s=0.1)
    with Client(world.zookeeper, transactions=config) as client, client.consumer("audit", config=QUICK) as consumer:
        client.resolve(world.deciding.url)
        recovered = spans.one("recover", trace)
        consumer.subscribe("orders")
        consumer.start()
        traced = 0
        while traced < 2:
            messages = consumer.fetch(1000, 60)
            assert messages
            traced += sum(trace in (message.traceparent or "") for message in messages)
    fetched = [f"{link.context.trace_id:032x}" for span in spans.named("receive orders") for link in span.links]
    assert fetched.count(trace) == 2, "by links: one fetch receives the messages of many traces"
    told = recovered.attributes or {}
    assert str(told["messaging.metaq.xid"]).startswith("XID:1:")
    assert told["messaging.metaq.gtrid"] not in gtrids


@pytest.mark.parametrize("step", ["PREPARED", "DECIDED"])
def test_a_recovery_joins_the_trace_of_what_crashed(world: World, spans: Spans, step: str) -> None:
    inbound = INBOUND.format(trace := uuid.uuid4().hex)
    assert start_module(CRASHING, world.deciding.url, world.zookeeper, inbound, step).wait() == -9
    config = TransactionConfig(age_s=0.1, interval_s=0.1)
    with Client(world.zookeeper, transactions=config) as client:
        client.resolve(world.deciding.url)
        recovered = spans.one("recover")
    assert trace_of(recovered) == trace
    told = recovered.attributes or {}
    assert str(told["messaging.metaq.gtrid"]).startswith("mq1-")
    assert str(told["messaging.metaq.xid"]).startswith("XID:1:")
    assert world.deciding.numbers() == ([1] if step == "DECIDED" else [])


@pytest.mark.parametrize("relay_traces", [True, False])
def test_an_outbox_carries_the_trace_of_the_service(world: World, spans: Spans, relay_traces: bool) -> None:
    outboxed = OutboxWorld(world)
    with spans.provider.get_tracer("service").start_as_current_span("POST /orders") as request:
        outboxed.work(3)  # its attribute is its number
    sent = spans.one("send orders")
    assert parent_of(sent) == request.get_span_context().span_id
    if not relay_traces:
        disable_tracing()
    with outboxed.closing:
        assert outboxed.relay().run_pass() is False
    (message,) = [one for one in read_whole(world.client, "orders", 4, world.begins) if one.payload == b"3"]
    assert message.attribute == "3"
    assert str(message.traceparent).split("-")[1:3] == [trace_of(sent), f"{id_of(sent):016x}"]
    assert len(spans.named("send orders")) == 1


def test_what_is_forwarded_keeps_partition_and_trace(world: World, spans: Spans) -> None:
    producer = world.client.producer(partitioner=ByAttribute())
    traced = with_traceparent("key", INBOUND.format(uuid.uuid4().hex))
    assert producer.send("orders", b"", traced).partition == producer.send("orders", b"", "key").partition


def test_sends_and_fetches(zookeeper: Chroot, broker: BrokerProcess, spans: Spans) -> None:
    assert broker.is_running
    with Client(zookeeper.connect) as client, client.consumer("billing", config=QUICK) as consumer:
        producer = client.producer()
        consumer.subscribe("orders")
        consumer.start()
        producer.send("orders", b"one", partition="0-0")
        producer.send_async("orders", b"two", "key", partition="0-0").result()
        with pytest.raises(NoPartition):
            producer.send("unknown topic".replace(" ", "-"), b"", timeout_s=0.2)
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.fetch(10, 60)
    first, second = spans.named("send orders")
    links = [link.context.span_id for span in spans.named("receive orders") for link in span.links]
    assert links == [id_of(first), id_of(second)]
    assert [message.attribute for message in found] == [None, "key"]
    assert spans.one("send unknown-topic").status.status_code is StatusCode.ERROR
    told = [str(message.traceparent).split("-")[1:3] for message in found]
    assert told == [[trace_of(span), f"{id_of(span):016x}"] for span in (first, second)]


def test_batches_link_and_tasks_are_traced(zookeeper: Chroot, broker: BrokerProcess, spans: Spans) -> None:
    assert broker.is_running

    async def consume() -> None:
        async with aio.Client(zookeeper.connect) as client:
            got, consumer = asyncio.Event(), client.consumer("billing", config=QUICK)

            async def listen(batch: Batch) -> None:
                await client.producer().send("invoices", b"for " + batch.messages[0].payload)
                got.set()

            consumer.subscribe("orders", listen)
            with spans.provider.get_tracer("service").start_as_current_span("job"):
                await client.producer().send("orders", b"one")
            async with consumer:
                await asyncio.wait_for(got.wait(), 60)

    asyncio.run(consume())
    job, sent, invoiced = spans.one("job"), spans.one("send orders"), spans.one("send invoices")
    processed = spans.one("process orders")
    assert parent_of(sent) == id_of(job)
    assert parent_of(processed) == id_of(sent)
    assert [link.context.span_id for link in processed.links] == [id_of(sent)]
    assert parent_of(invoiced) == id_of(processed)


def test_switched_off_nothing_is_imported_or_added(zookeeper: Chroot, broker: BrokerProcess) -> None:
    assert broker.is_running
    with Client(zookeeper.connect) as client:
        client.producer().send("orders", b"plain", "key", partition="0-0")
        with client.consumer("billing", config=QUICK) as consumer:
            consumer.subscribe("orders")
            consumer.start()
            (message,) = consumer.fetch(1, 60)
    assert (message.attribute, message.traceparent, type(message)) == ("key", None, ReceivedMessage)
    script = "import sys, meta_client, meta_client.aio; sys.exit('opentelemetry' in str(sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_rollback_is_a_span_too(world: World, spans: Spans) -> None:
    def fail() -> None:
        with closing(world.deciding.connect()) as connection, world.client.transaction(connection) as transaction:
            transaction.send("orders", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (spans.one("roll back").attributes or {})["messaging.operation.name"] == "roll back"
    assert spans.named("decide") == []


def test_a_coordinators_steps_are_spans(world: World, spans: Spans, tmp_path: Path) -> None:
    producer = world.client.producer("shop")
    with (
        spans.provider.get_tracer("service").start_as_current_span("job"),
        closing(Coordinator.open(tmp_path / "decisions", "shop")) as coordinator,
        closing(world.deciding.connect()) as connection,
        coordinator.transaction(connection, producer, topics=("orders",)) as transaction,
    ):
        do(connection, "INSERT INTO numbers VALUES (1)")
        producer.send("orders", b"1")
    steps = [spans.one(name) for name in ("prepare", "decide", "commit")]
    assert {parent_of(span) for span in [*steps, spans.one("send orders")]} == {id_of(spans.one("job"))}
    assert {(span.attributes or {})["messaging.metaq.gtrid"] for span in steps} == {transaction.name}


@pytest.mark.parametrize("step", ["PREPARED_DATABASE", "DECIDED"])
def test_a_coordinators_recovery_joins_the_trace_of_what_crashed(
    world: World, spans: Spans, tmp_path: Path, step: str
) -> None:
    inbound = INBOUND.format(trace := uuid.uuid4().hex)
    words = (world.deciding.url, world.zookeeper, str(tmp_path / "decisions"), inbound, step)
    assert start_module(CRASHING_COORDINATOR, *words).wait() == -9
    with (
        closing(Coordinator.open(tmp_path / "decisions", "shop")) as coordinator,
        closing(world.deciding.connect()) as connection,
    ):
        (report,) = coordinator.recover([connection], [world.client.producer("shop")])
    assert report.problem is None
    recovered = spans.one("recover", trace)
    told = recovered.attributes or {}
    assert told["messaging.metaq.gtrid"] == report.xid.gtrid.decode()
    assert str(told["messaging.metaq.xid"]).endswith(":shop")
    assert spans.named("tpc_commit") == spans.named("tpc_rollback") == []
    assert world.deciding.numbers() == ([1] if step == "DECIDED" else [])


def test_verbs_of_a_branch_are_spans_and_what_another_producer_ends_joins_its_trace(world: World, spans: Spans) -> None:
    tracer, xid, left = spans.provider.get_tracer("service"), Xid.of("order", "mq"), Xid.of("left", "mq")
    producer = world.client.producer("verbs")
    with tracer.start_as_current_span("job") as job:
        for name in (xid, left):
            producer.tpc_begin(name, ["orders"])
            producer.send("orders", b"1")
            producer.tpc_prepare()
        producer.tpc_commit(xid)  # prepared by itself, though another branch is the current one
    with tracer.start_as_current_span("another job"):
        world.client.producer("verbs").tpc_rollback(left)
    prepared, committed, recovered = spans.named("tpc_prepare"), spans.one("tpc_commit"), spans.one("recover")
    assert [(one.attributes or {})["messaging.metaq.gtrid"] for one in prepared] == ["order", "left"]
    assert {parent_of(one) for one in (*prepared, committed)} == {job.get_span_context().span_id}
    assert (committed.attributes or {})["messaging.metaq.xid"] == str(XaKey(xid, "verbs"))
    assert (recovered.attributes or {})["messaging.metaq.xid"] == str(XaKey(left, "verbs"))
    assert parent_of(recovered) == id_of(spans.named("send orders")[1])
    with pytest.raises(XaError):
        producer.tpc_commit(Xid.of("unknown", "mq"))
    assert spans.named("recover") == [recovered], "nothing was there to recover"


def test_verbs_of_a_task_are_spans_of_its_own_trace(world: World, spans: Spans) -> None:
    async def work() -> None:
        async with aio.Client(world.zookeeper) as client:
            producer, xid = client.producer("tasks"), Xid.of("task", "mq")
            with spans.provider.get_tracer("service").start_as_current_span("job"):
                await producer.tpc_begin(xid, ["orders"])
                await producer.send("orders", b"1")
                await producer.tpc_prepare()
                await producer.tpc_rollback()

    asyncio.run(work())
    job = id_of(spans.one("job"))
    assert parent_of(spans.one("tpc_prepare")) == parent_of(spans.one("tpc_rollback")) == job


def test_the_resolvers_command_exports_what_it_ends(world: World) -> None:
    inbound = INBOUND.format(trace := uuid.uuid4().hex)
    assert start_module(CRASHING, world.deciding.url, world.zookeeper, inbound, "PREPARED").wait() == -9
    words = ["txn", "resolver", "--database", world.deciding.url, "--zk", world.zookeeper, "--age", "0.1", "--once"]
    refused = run_metaq(*words, "--traces", "nowhere")
    assert refused.returncode == 2
    assert "no exporter 'nowhere' is installed, of console" in refused.stderr
    done = run_metaq(*words, "--traces", "console")
    assert done.returncode == 0, done
    assert '"name": "recover"' in done.stdout
    assert f'"trace_id": "0x{trace}"' in done.stdout


def test_a_broker_told_to_exports_what_traced_clients_store(
    zookeeper: Chroot, tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the message's `send`: batches, a branch and its end; messages without a sampled context make none."""
    monkeypatch.setenv("METAQ_TRACES", "console")
    with running_broker(tmp_path / "data", zookeeper.connect) as broker, Client(zookeeper.connect) as client:
        producer = client.producer()
        for number in range(3):
            producer.send_async("orders", b"%d" % number, partition="0-0").result(60)
        branch, xid = client.producer("traced"), Xid.of("stored", "mq")
        branch.tpc_begin(xid, ["orders"])
        branch.send("orders", b"in a branch")
        branch.tpc_prepare()
        branch.tpc_commit(xid)
        disable_tracing()
        producer.send("orders", b"untraced")
        assert broker.stop() == 0
        log = broker.log
    sent = [span for span in spans.all() if span.name == "send orders"]
    assert len(sent) == 4
    fields = r'"name": "([^"]*)".*?"trace_id": "0x([0-9a-f]*)".*?"parent_id": "0x([0-9a-f]*)"'
    exported = re.findall(fields, log, re.DOTALL)
    stored = [(trace, parent) for name, trace, parent in exported if name == "store orders"]
    assert stored == [(trace_of(span), f"{id_of(span):016x}") for span in sent]
    assert [(name, trace) for name, trace, _ in exported if name != "store orders"] == [
        ("prepare", trace_of(sent[-1])),
        ("commit", trace_of(sent[-1])),
    ]
