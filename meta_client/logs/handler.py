"""The handler of a command's log: one line a record, with context, repeats limited."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from meta_client.logs.context import CONTEXT
from meta_client.logs.limit import RepeatLimit

log = logging.getLogger(__name__)

AUDIT: Final = "metaq.audit"  # the logger of operators' actions: none of its lines is left out
LOST: Final = ("audit", "other")  # kinds of records


class LogStream(Protocol):
    """Destination of a log."""

    def write(self, text: str, /) -> object:
        """Write *text*. Raises OSError if that is not possible; a part may have been written."""


class LimitedHandler(logging.StreamHandler[LogStream]):
    """Writes records to *stream* with *fields*, without the repeats that a RepeatLimit leaves out. DEBUG and AUDIT have
    no limit. Any thread.

    Records that *stream* refuses, on a full disk say, are lost: they are counted, and the next line that it takes says
    how many.
    """

    def __init__(
        self, stream: LogStream, fields: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._fields = dict(fields or {})
        self._limit = RepeatLimit(clock)
        self._lost = dict.fromkeys(LOST, 0)
        self._untold = dict.fromkeys(LOST, 0)  # of them, since a line last said it
        self._is_telling = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*, or count it; called under the handler's lock."""
        omitted: int | None = 0
        if record.levelno > logging.DEBUG and record.name != AUDIT:
            omitted = self._limit.admit(record)
            self._tell_omitted()
        if omitted is not None:
            self._tell_lost()
            record.context = self._fields | CONTEXT.get() | ({"omitted_before": str(omitted)} if omitted else {})
            super().emit(record)

    def _tell_omitted(self, *, everything: bool = False) -> None:
        for (path, line), count in self._limit.overdue(everything=everything):
            message = "records left out, too many alike count=%d at=%s:%d"
            super().emit(logging.LogRecord(log.name, logging.WARNING, __file__, 0, message, (count, path, line), None))

    def _tell_lost(self) -> None:
        """Say what was lost, on a line of its own: the last one may have been cut off."""
        if not any(self._untold.values()):
            return
        count, self._untold, self._is_telling = self._untold, dict.fromkeys(LOST, 0), True
        message = "records lost, the log could not be written audit=%(audit)d other=%(other)d"
        note = logging.LogRecord(log.name, logging.ERROR, __file__, 0, f"\n{message}", (count,), None)
        super().emit(note)
        if not self._is_telling:  # it was lost, too
            self._untold = count
        self._is_telling = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the API's name
        """Count *record* as lost if the stream refused it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
        elif self._is_telling:
            self._is_telling = False
        else:
            kind = "audit" if record.name == AUDIT else "other"
            self._lost[kind] += 1
            self._untold[kind] += 1

    def lost(self) -> dict[str, int]:
        """Return the number of records lost, by kind: those of LOST. Takes no lock: a disk that hangs holds it."""
        return self._lost.copy()

    def close(self) -> None:
        """Say what was left out since the last line."""
        self.acquire()
        try:
            self._tell_omitted(everything=True)
        finally:
            self.release()
        super().close()


def lost_totals() -> dict[str, int]:
    """Return the number of records that could not be written, by kind; empty: this process has no such log. Any
    thread."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LimitedHandler):
            return handler.lost()
    return {}
