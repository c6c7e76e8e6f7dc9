"""Traces by OpenTelemetry, an optional extra: `pip install metaq-broker[otel]`, and your SDK and exporter.

Read: meta_client/tracing.py (what clients call) -> spans -> exporting (of commands).
"""

from typing import TYPE_CHECKING

from meta_client.tracing import TRACING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["disable_tracing", "enable_tracing"]


def enable_tracing(provider: "TracerProvider | None" = None) -> None:
    """Make spans for what this process's clients send, receive and commit from now on, and send trace context with
    messages. Call it before listeners are subscribed. *provider* None: OpenTelemetry's global one. Any thread.

    Raises ModuleNotFoundError without the extra `otel`: install it.
    """
    from meta_client.otel.spans import OpenTelemetryHooks  # imported on first use

    TRACING.hooks = OpenTelemetryHooks(provider)


def disable_tracing() -> None:
    """Make no spans from now on, except for listeners that are subscribed. Any thread."""
    TRACING.hooks = None
