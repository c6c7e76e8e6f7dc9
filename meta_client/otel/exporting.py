"""Spans of a command: exported as the SDK's environment variables say. Imported by commands that are told to."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Final

from meta_client.otel import disable_tracing, enable_tracing
from meta_client.protocol.errors import MetaError

EXPORTERS: Final = "opentelemetry_traces_exporter"  # of entry points, OpenTelemetry's own


class NoExporter(MetaError):
    """Traces can't be exported: install what the message names."""


@contextmanager
def exporting(name: str) -> Iterator[None]:
    """Make spans until the block ends, and give them to the exporter *name*, as OTEL_TRACES_EXPORTER names it: console,
    otlp_proto_http. What is left is exported at the end. Raises NoExporter without it."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise NoExporter(f"traces: {error}: pip install 'metaq-broker[otel]' opentelemetry-sdk") from error
    found = {point.name: point for point in entry_points(group=EXPORTERS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise NoExporter(f"traces: no exporter {name!r} is installed, of {known}: pip install its package")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(found[name].load()()))
    enable_tracing(provider)
    try:
        yield
    finally:
        disable_tracing()
        provider.shutdown()
