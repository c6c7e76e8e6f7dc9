"""A process that sets its log up, and one that does not: what is counted, lost or shown."""

import io
import logging
from collections.abc import Iterator

import pytest

from meta_client.logs.counting import record_totals
from meta_client.logs.events import Event, event_of
from meta_client.logs.handler import LimitedHandler, lost_totals
from meta_client.logs.setup import set_up_logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root of loggers, which a test may change."""
    root, kazoo = logging.getLogger(), logging.getLogger("zk.kazoo")
    handlers, level, of_kazoo = root.handlers[:], root.level, kazoo.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    kazoo.setLevel(of_kazoo)


def test_a_process_without_a_log_of_metaqs_counts_nothing(root: logging.Logger) -> None:
    root.handlers[:] = [logging.NullHandler()]
    assert record_totals() == lost_totals() == {}


@pytest.mark.parametrize(("level", "of_kazoo"), [("debug", logging.NOTSET), ("info", logging.ERROR)])
def test_kazoo_says_what_it_does_at_debug_alone(root: logging.Logger, level: str, of_kazoo: int) -> None:
    logging.getLogger("zk.kazoo").setLevel(logging.NOTSET)
    root.handlers.clear()
    set_up_logs(level, "text")
    assert logging.getLogger("zk.kazoo").level == of_kazoo
    assert root.level == getattr(logging, level.upper())
    root.warning("one")
    assert record_totals()["warning"] == 1
    assert set(lost_totals().values()) == {0}
    handlers = root.handlers[:]
    set_up_logs(level, "json")
    assert root.handlers == handlers, "set up already"


def test_a_mistake_in_a_log_call_is_shown_and_is_no_lost_record(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LimitedHandler(io.StringIO())
    handler.handle(logging.LogRecord("a", logging.ERROR, "file.py", 7, "%d bytes", ("many",), None))
    assert "--- Logging error ---" in capsys.readouterr().err
    assert set(handler.lost().values()) == {0}


@pytest.mark.parametrize(("message", "args"), [(ValueError("no text"), ()), ("%(number)s", ({"number": 1},))])
def test_what_is_no_template_with_arguments_is_an_event_without_fields(
    message: object, args: tuple[object, ...]
) -> None:
    record = logging.LogRecord("a", logging.ERROR, "file.py", 7, message, args, None)
    text = record.getMessage()
    assert event_of(record) == Event(text, {}, "", text)
