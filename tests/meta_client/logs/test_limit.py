"""Repeats of one line of code are left out and counted; others are not held up by them; memory is bounded."""

import errno
import io
import logging

from meta_client.logs.context import logged_with
from meta_client.logs.counting import LogCounts
from meta_client.logs.formats import TextFormatter
from meta_client.logs.handler import AUDIT, LimitedHandler
from meta_client.logs.limit import BURST, PLACES_MAX, TELL_S


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def handler_of(clock: Clock) -> tuple[LimitedHandler, io.StringIO]:
    stream = io.StringIO()
    handler = LimitedHandler(stream, clock=clock)
    handler.setFormatter(TextFormatter())
    return handler, stream


def record(line: int, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("a", level, "file.py", line, "refused number=%d", (line,), None)


def test_repeats_are_left_out_and_counted() -> None:
    clock = Clock()
    handler, stream = handler_of(clock)
    for _ in range(20_000):
        handler.handle(record(1))
    handler.handle(record(2))
    lines = stream.getvalue().splitlines()
    assert len(lines) == BURST + 1
    assert lines[-1].endswith("refused number=2"), "another place is heard"
    clock.now += 1.0
    handler.handle(record(1))
    assert stream.getvalue().splitlines()[-1].endswith(f"refused number=1 omitted_before={20_000 - BURST}")


def test_a_place_that_falls_silent_is_told_of_with_the_next_line_or_at_the_end() -> None:
    clock = Clock()
    handler, stream = handler_of(clock)
    for _ in range(BURST + 5):
        handler.handle(record(1))
    clock.now += TELL_S
    handler.handle(record(2))
    assert "records left out, too many alike count=5 at=file.py:1" in stream.getvalue()
    for _ in range(BURST + 7):
        handler.handle(record(2))
    handler.close()
    assert stream.getvalue().splitlines()[-1].endswith("count=8 at=file.py:2")
    handler.close()
    assert stream.getvalue().count("left out") == 2


def test_debug_has_no_limit() -> None:
    handler, stream = handler_of(Clock())
    for _ in range(BURST + 5):
        handler.handle(record(1, logging.DEBUG))
    assert len(stream.getvalue().splitlines()) == BURST + 5


def test_memory_is_bounded_whatever_logs() -> None:
    clock = Clock()
    handler, stream = handler_of(clock)
    for _ in range(BURST + 3):
        handler.handle(record(0))
    for line in range(1, 3 * PLACES_MAX):
        handler.handle(record(line))
    assert len(handler._limit._places) <= PLACES_MAX
    assert "count=3 at=file.py:0" in stream.getvalue(), "nothing is forgotten without a word"


def test_what_is_left_out_is_counted_by_level() -> None:
    logger, counts = logging.Logger("own"), LogCounts()
    handler, _ = handler_of(Clock())
    logger.addHandler(handler)
    logger.addHandler(counts)
    for _ in range(BURST + 9):
        logger.error("failed")
    logger.warning("beware")
    logger.info("fine")
    logger.critical("over")
    assert counts.totals() == {"warning": 1, "error": BURST + 9, "critical": 1}


def test_lines_say_what_they_belong_to() -> None:
    handler, stream = handler_of(Clock())
    with logged_with(conn="127.0.0.1:1"):
        handler.handle(record(1))
        with logged_with(rebalance="a b/3"):
            handler.handle(record(1))
    handler.handle(record(1))
    ends = [line.partition("number=1")[2] for line in stream.getvalue().splitlines()]
    assert ends == [" conn=127.0.0.1:1", ' conn=127.0.0.1:1 rebalance="a b/3"', ""]


class FullDisk(io.StringIO):
    """Refuses what is written while it is full; of the first line it has taken a part."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            super().write(text[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_lines_that_can_t_be_written_are_counted_and_told_of() -> None:
    stream = FullDisk()
    handler = LimitedHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audited = logging.LogRecord(AUDIT, logging.INFO, "file.py", 9, "audit action=x", None, None)
    handler.handle(record(1))
    assert handler.lost() == {"audit": 0, "other": 0}
    stream.is_full = True
    for each in (record(2), audited, audited, record(3)):
        handler.handle(each)
    stream.is_full = False
    handler.handle(record(4))
    handler.handle(record(5))
    assert handler.lost() == {"audit": 2, "other": 2}
    lines = stream.getvalue().splitlines()
    assert lines[0] == "refused number=1"
    told = "records lost, the log could not be written audit=2 other=2"
    assert lines[-3:] == [told, "refused number=4", "refused number=5"], "on a line of its own"
    assert stream.getvalue().count("records lost") == 1
