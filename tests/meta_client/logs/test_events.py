"""Templates and arguments become events and fields; no argument looks like another field or line."""

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.logs.events import Event, event_of
from meta_client.logs.formats import JsonFormatter, TextFormatter

ROOT = Path(__file__).parents[3]
FORGED = 'x level=ERROR\n2026-11-24 00:00:00,000 CRITICAL forged conn=1 "quoted" \\ \x1b[31m\u2028\u202e'


def record(template: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a.logger", logging.WARNING, "file.py", 7, template, args, None)


def test_fields_have_their_types() -> None:
    event = event_of(record("checkpoint written number=%d lsn=%d free=%.1f full=%s name=%s", 3, 2**40, 0.25, None, "x"))
    text = "checkpoint written number=3 lsn=1099511627776 free=0.2 full=None name=x"
    fields = {"number": 3, "lsn": 2**40, "free": "0.2", "full": None, "name": "x"}
    assert event == Event("checkpoint written", fields, "", text)


ASK = "fetch failed, trying again group=%s request=%r error=%s"
LIST = "in doubt count=%d: list them with `metaq --dir %s`"
HANGS = "hangs for=%.1f s disk file=%s durable=%d%s"
TEMPLATES = [
    (
        ASK,
        ("g", "a/0-0", OSError("no")),
        "fetch failed, trying again",
        {"group": "g", "request": "a/0-0", "error": "no"},
    ),
    (LIST, (2, "/d"), "in doubt", {"count": 2}),
    ("offset moved partition=%s/%s from=%d", ("t", "0-1", 5), "offset moved", {"partition": "t/0-1", "from": 5}),
    (HANGS, (1.25, "/a", 7, ": given up"), "hangs", {"for": "1.2", "file": "/a", "durable": 7}),
    ("again in %.1f s group=%s", (0.5, "g"), "again in 0.5 s", {"group": "g"}),
    ("filter failed: %s", ("it died",), "filter failed", {}),
    ("session ended id=%#x", (255,), "session ended", {"id": "0xff"}),
    ("100%% done", (), "100% done", {}),
]
DETAILS = {LIST: "list them with `metaq --dir /d`", HANGS: "disk given up", "filter failed: %s": "it died"}


@pytest.mark.parametrize(("template", "args", "name", "fields"), TEMPLATES)
def test_templates(template: str, args: tuple[object, ...], name: str, fields: dict[str, object]) -> None:
    event = event_of(record(template, *args))
    assert event[:3] == (name, fields, DETAILS.get(template, ""))


@pytest.mark.parametrize("template", ["a=%s b", "a=%d and %s", "%(name)s", "no arguments", "%s %s %s", "x %z"])
def test_a_template_that_does_not_fit_is_logged_all_the_same(template: str) -> None:
    event = event_of(record(template, "one", "two"))
    assert event.fields == {}
    assert "one" in event.text or "no arguments" in event.text


def test_an_argument_forges_neither_a_field_nor_a_line() -> None:
    for template in ("topic made topic=%s parts=%d", "topic %s parts=%d", "kept: %s parts=%d"):
        line = TextFormatter().format(record(template, FORGED, 4))
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        assert fields_of_line(line)["parts"] == "4"
        assert "level" not in fields_of_line(line)
        assert "conn" not in fields_of_line(line)
        found = json.loads(JsonFormatter().format(record(template, FORGED, 4)))
        assert found["level"] == "warning"
        assert found["parts"] == 4
        assert "conn" not in found


def fields_of_line(line: str) -> dict[str, str]:
    """Read `key=value` as a program would: what is in quotes, and no field's value, is passed over."""
    text = r'"(?:[^"\\]|\\.)*"'
    found = re.findall(rf"(?:^|(?<= ))(\w+)=({text}|[^\s\"]*)|{text}", line)
    return {name: value for name, value in found if name}


@given(st.text(), st.text())
def test_a_line_stays_one_line_whatever_it_tells(first: str, second: str) -> None:
    for template in ("event a=%s: %s", "%s a=%s", "event a=%s b=%r"):
        line = TextFormatter().format(record(template, first, second))
        assert len(line.splitlines()) == 1
        found = JsonFormatter().format(record(template, first, second))
        assert len(found.splitlines()) == 1
        assert json.loads(found)["a"] in (first, second)


def test_a_traceback_is_indented_and_one_field_in_json() -> None:
    try:
        raise ValueError("a\n2026-11-24 00:00:00,000 CRITICAL forged")
    except ValueError as error:
        told = record("listener failed topic=%s", "orders")
        told.exc_info = (ValueError, error, error.__traceback__)
    first, *others = TextFormatter().format(told).splitlines()
    assert first.endswith("WARNING a.logger listener failed topic=orders")
    assert others[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in others)
    found = json.loads(JsonFormatter().format(told))
    assert "forged" in found["exception"]
    assert found["event"] == "listener failed"


def log_calls() -> Iterator[tuple[str, str, int]]:
    """File, template and number of arguments of every call of a logger in the product whose number can be seen."""
    names = {"debug", "info", "warning", "error", "critical", "exception"}
    for package in ("journal", "zk", "meta_client", "meta_broker", "spark_jobs"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=attr),
                        args=[ast.Constant(value=str(template)), *args],
                    ) if attr in names:
                        tuples = [it.value for it in args if isinstance(it, ast.Starred)]
                        plain = [it.elts for it in tuples if isinstance(it, ast.Tuple)]
                        more = [len(it) - 1 for it in plain if not any(isinstance(one, ast.Starred) for one in it)]
                        if len(more) == len(tuples):
                            yield str(path.relative_to(ROOT)), template, len(args) + sum(more)


def test_every_template_of_ours_is_an_event_with_fields() -> None:
    calls = list(log_calls())
    assert len(calls) > 150
    for path, template, count in calls:
        event = event_of(record(template, *range(count)))
        named = template.count("=%")
        assert len(event.fields) == named, (path, template, event.fields)
        assert event.name, (path, template)
