"""Bars, and the run that a benchmark is compared with."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench import history
from bench.__main__ import main
from bench.cases import CASES
from bench.pairs import Pair, summary
from bench.result import Bar, Result, median
from bench.table import performance_table
from bench.usage import measured

RESULT = Result("send-1", 50.0, "messages/s", 100.0, {"messages_s": 7})


@pytest.mark.parametrize(
    ("bar", "is_met"),
    [
        (Bar("ratio", 0.5), True),
        (Bar("ratio", 0.51), False),
        (Bar("value", 49, is_ceiling=True), False),
        (Bar("value", 50, is_ceiling=True), True),
        (Bar("messages_s", 8), False),
        (Bar("messages_s", 7), True),
    ],
)
def test_a_bar_is_met_or_not(bar: Bar, is_met: bool) -> None:
    assert RESULT.meets(bar) is is_met


@pytest.mark.parametrize(
    ("bar", "values", "middle"),
    [
        (Bar("value", 3), [9.0, 1.0, 3.0], 3.0),
        (Bar("value", 3), [9.0, 1.0, 3.0, 4.0], 3.0),  # of an even number the worse one
        (Bar("value", 3, is_ceiling=True), [9.0, 1.0, 3.0, 4.0], 4.0),
    ],
)
def test_a_bar_judges_the_median_of_the_rounds(bar: Bar, values: list[float], middle: float) -> None:
    found = median([Result("send-1", value, "messages/s", 1.0) for value in values], bar)
    assert found.value == middle
    assert found.detail["spread"] == sorted(values)


def test_pairs_are_compared_by_their_own_ratios() -> None:
    def run(value: float, client_us: float) -> dict[str, Any]:
        return {"value": value, "detail": {"client_us": client_us, "client_faults": 0.0}}

    pairs = [Pair(run(100, 2.0), run(150, 1.0)), Pair(run(10, 4.0), run(11, 3.0)), Pair(run(50, 1.0), run(60, 1.0))]
    assert pairs[0].ratios() == {
        "value": 1.5,
        "client_us": 0.5,
    }  # what neither says, or nothing can be over, is left out
    lines = summary("send-1", pairs).splitlines()
    assert "median of 3 pairs" in lines[0]
    assert lines[1].split() == ["value", "1.200", "(1.100", "to", "1.500)", "50", "->", "60"]
    assert lines[2].split() == ["client_us", "0.750", "(0.500", "to", "1.000)", "2", "->", "1"]


def test_a_load_is_measured_by_thread() -> None:
    stop = threading.Event()
    spinner = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)], name="metaq sender")
    spinner.start()
    try:
        with measured(None) as load:
            deadline = time.thread_time() + 0.2
            while time.thread_time() < deadline:
                pass
    finally:
        stop.set()
        spinner.join()
    detail = load.detail(1000)
    assert detail["us_by_thread"]["client callers"] > 100
    assert detail["us_by_thread"]["client sender"] > 1
    # Each is rounded by itself; the process has other threads.
    assert detail["client_us"] > sum(detail["us_by_thread"][f"client {name}"] for name in ("callers", "sender")) - 0.01
    assert 0 <= detail["idle"] <= 1


@pytest.mark.parametrize("here", [history.machine, history.interpreter])
def test_a_run_is_compared_with_the_last_ones_of_this_machine_and_interpreter(
    here: Callable[[], str], tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    assert history.change(RESULT, history.earlier("send-1", path)) is None
    for value in (1.0, 20.0, 40.0, 40.0, 40.0, 90.0):
        history.record([Result("send-1", value, "messages/s", 100.0), Result("send-32", 1.0, "messages/s", 1.0)], path)
    runs = history.earlier("send-1", path)
    assert [run["value"] for run in runs] == [20.0, 40.0, 40.0, 40.0, 90.0]
    assert history.change(RESULT, runs) == pytest.approx(0.25)
    assert {"time", "commit", "machine", "python", "floor", "unit", "detail"} <= runs[0].keys()
    path.write_text(path.read_text().replace(here(), "another one"))
    assert history.earlier("send-1", path) == []


def test_the_committed_history_can_be_read() -> None:
    for case in CASES:
        history.earlier(case)


def test_cases_are_listed_with_their_bars_and_unknown_ones_refused() -> None:
    listed = CliRunner().invoke(main)
    assert listed.exit_code == 0
    assert all(case in listed.output and str(CASES[case].bar) in listed.output for case in CASES)
    refused = CliRunner().invoke(main, ["send-2"])
    assert refused.exit_code == 2
    assert "no case 'send-2'" in refused.output
    alone = CliRunner().invoke(main, ["send-1", "--pairs", "2"])
    assert alone.exit_code == 2
    assert "--pairs and --against go together" in alone.output


def test_another_checkout_without_an_environment_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["send-1", "--pairs", "1", "--against", str(tmp_path)])
    assert refused.exit_code == 1
    assert "has no .venv: run `make setup` there" in refused.output


def test_the_performance_page_has_the_last_recorded_figures() -> None:
    page = (Path(__file__).parents[2] / "docs/performance.md").read_text()
    assert performance_table() in page, "paste what `python -m bench --table` prints into docs/performance.md"
