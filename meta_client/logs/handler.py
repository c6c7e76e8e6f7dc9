"""The handler of a command's log: one line a record, with context, repeats limited."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from meta_client.logs.context import CONTEXT
from meta_client.logs.limit import RepeatLimit

log = logging.getLogger(__name__)

AUDIT: Final = "metaq.audit"  # the logger of operators' actions: none of its lines is left out


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records to *stream* with *fields*, without the repeats that a RepeatLimit leaves out. DEBUG and AUDIT have
    no limit. Any thread."""

    def __init__(
        self, stream: TextIO, fields: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._fields = dict(fields or {})
        self._limit = RepeatLimit(clock)

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*, or count it; called under the handler's lock."""
        omitted: int | None = 0
        if record.levelno > logging.DEBUG and record.name != AUDIT:
            omitted = self._limit.admit(record)
            self._tell_omitted()
        if omitted is not None:
            record.context = self._fields | CONTEXT.get() | ({"omitted_before": str(omitted)} if omitted else {})
            super().emit(record)

    def _tell_omitted(self, *, everything: bool = False) -> None:
        for (path, line), count in self._limit.overdue(everything=everything):
            message = "records left out, too many alike count=%d at=%s:%d"
            super().emit(logging.LogRecord(log.name, logging.WARNING, __file__, 0, message, (count, path, line), None))

    def close(self) -> None:
        """Say what was left out since the last line."""
        self.acquire()
        try:
            self._tell_omitted(everything=True)
        finally:
            self.release()
        super().close()
