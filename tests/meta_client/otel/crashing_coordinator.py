"""A traced program that kills itself, with SIGKILL, at a given step of a coordinator's transaction. Run by
test_traces."""

import os
import signal

import psycopg
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from journal.records.xid import Xid
from meta_client import Client
from meta_client.coordinator import Coordinator, TwoPhaseStep
from meta_client.otel import enable_tracing


def main(dsn: str, zookeeper: str, directory: str, traceparent: str, step_name: str) -> None:
    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    provider = TracerProvider(shutdown_on_exit=False)
    enable_tracing(provider)
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    with (
        provider.get_tracer("service").start_as_current_span("POST /orders", context),
        Client(zookeeper) as client,
        Coordinator.open(directory, "shop", observer=observe) as coordinator,
        psycopg.connect(dsn) as connection,
    ):
        producer = client.producer("shop")
        with coordinator.transaction(connection, producer, topics=("orders",)):
            connection.execute("INSERT INTO numbers VALUES (1)")
            producer.send("orders", b"1", "customer-1")
