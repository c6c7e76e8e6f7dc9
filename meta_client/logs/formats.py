"""Formats of a log: text, one line an event with key=value, and JSON, one object a line by structlog."""

import logging
import time
from typing import Any, Final

from meta_client.logs.events import escape, event_of, quote

RESERVED: Final = frozenset({"timestamp", "level", "logger", "event", "detail", "exception"})


def context_of(record: logging.LogRecord) -> dict[str, str]:
    """Return what the handler noted of the code that logged."""
    found: dict[str, str] = getattr(record, "context", {})
    return found


class TextFormatter(logging.Formatter):
    """`2026-11-24 07:05:40,123 LEVEL logger event key=value ...: detail`. Lines of a traceback are indented: only a
    record begins at the left edge."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s ")

    def format(self, record: logging.LogRecord) -> str:
        event = event_of(record)
        more = "".join(
            f" {name}={quote(value)}" for name, value in context_of(record).items() if name not in event.fields
        )
        head = f"{self.formatTime(record)} {record.levelname} {record.name} {event.text}{more}"
        if not record.exc_info:
            return head
        return "\n    ".join([head, *map(escape, self.formatException(record.exc_info).split("\n"))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line, by structlog."""

    def __init__(self) -> None:
        super().__init__()
        from structlog.processors import JSONRenderer, format_exc_info  # imported on first use

        self._render = JSONRenderer(default=str)
        self._format_exception = format_exc_info

    def format(self, record: logging.LogRecord) -> str:
        event = event_of(record)
        entry: dict[str, Any] = {
            "timestamp": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event.name,
        }
        for name, value in (context_of(record) | event.fields).items():
            entry[f"{name}_" if name in RESERVED else name] = value
        if event.detail:
            entry["detail"] = event.detail
        if record.exc_info:
            entry["exc_info"] = record.exc_info
        line = self._render(None, "", self._format_exception(None, "", entry))
        return line if isinstance(line, str) else line.decode()
