"""Counts warnings and errors that a process logs, for its metrics."""

import logging
from contextlib import nullcontext
from typing import Final

LEVELS: Final = ("warning", "error", "critical")


class LogCounts(logging.Handler):
    """Counts the records of each of LEVELS, from its making on. Any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts = dict.fromkeys(LEVELS, 0)

    def emit(self, record: logging.LogRecord) -> None:
        """Count *record*; called under the handler's lock."""
        name = "warning" if record.levelno < logging.ERROR else "error"
        self._counts["critical" if record.levelno >= logging.CRITICAL else name] += 1

    def totals(self) -> dict[str, int]:
        """Return the number of records by level."""
        with self.lock or nullcontext():
            return self._counts.copy()


def count_records() -> None:
    """Count what this process logs from now on. Idempotent."""
    root = logging.getLogger()
    if not any(isinstance(handler, LogCounts) for handler in root.handlers):
        root.addHandler(LogCounts())


def record_totals() -> dict[str, int]:
    """Return the number of records by level; empty: this process does not count them. Any thread."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogCounts):
            return handler.totals()
    return {}
