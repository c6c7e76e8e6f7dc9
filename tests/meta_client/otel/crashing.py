"""A traced program that kills itself, with SIGKILL, at a given step of a transaction. Run by test_traces."""

import os
import signal

import psycopg
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from meta_client import Client
from meta_client.otel import enable_tracing
from meta_client.transactions import CommitStep, TransactionConfig


def main(dsn: str, zookeeper: str, traceparent: str, step_name: str) -> None:
    def observe(step: CommitStep, gtrid: str) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    provider = TracerProvider(shutdown_on_exit=False)
    enable_tracing(provider)
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    with (
        provider.get_tracer("service").start_as_current_span("POST /orders", context),
        Client(zookeeper, transactions=TransactionConfig(observer=observe)) as client,
        psycopg.connect(dsn) as connection,
        client.transaction(connection) as transaction,
    ):
        connection.execute("INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1", "customer-1")
