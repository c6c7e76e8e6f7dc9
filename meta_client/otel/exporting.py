"""Spans of a command: exported as the SDK's environment variables say. Imported by commands that are told to."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Final

from meta_client.otel import disable_tracing, enable_tracing
from meta_client.protocol.errors import MetaError

EXPORTERS: Final = "opentelemetry_traces_exporter"  # of entry points, OpenTelemetry's own

END_S_MAX: Final = 5.0  # of exporting what is left, while the command stops
_log = logging.getLogger(__name__)


class NoExporter(MetaError):
    """Traces can't be exported: install what the message names."""


@contextmanager
def exporting(name: str) -> Iterator[None]:
    """Make spans until the block ends, and give them to the exporter *name*, as OTEL_TRACES_EXPORTER names it: console,
    otlp_proto_http. What is left is exported at the end, for END_S_MAX at most. Raises NoExporter without it."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise NoExporter(f"traces: {error}: pip install 'metaq-broker[otel]' opentelemetry-sdk") from error
    found = {point.name: point for point in entry_points(group=EXPORTERS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise NoExporter(f"traces: no exporter {name!r} is installed, of {known}: pip install its package")
    try:
        exporter = found[name].load()()
    except Exception as error:  # anybody's: it lacks a package, say, or its settings
        raise NoExporter(f"traces: exporter {name!r} can't be used: {error}") from error
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    enable_tracing(provider)
    try:
        yield
    finally:
        disable_tracing()
        _shut_down(provider.shutdown)


def _shut_down(shut_down: Callable[[], None]) -> None:
    def run() -> None:
        try:
            shut_down()
        except Exception as error:  # anybody's; what the command did is done
            _log.warning("exporter did not shut down error=%r", error)

    ending = threading.Thread(target=run, name="exporter's end", daemon=True)
    ending.start()
    ending.join(END_S_MAX)
    if ending.is_alive():
        _log.warning("spans left out: the exporter takes longer seconds=%g", END_S_MAX)
