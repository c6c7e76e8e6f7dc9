"""Bars, and the run that a benchmark is compared with."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import history
from bench.__main__ import main
from bench.cases import CASES
from bench.result import Bar, Result
from bench.table import performance_table

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


def test_the_performance_page_has_the_last_recorded_figures() -> None:
    page = (Path(__file__).parents[2] / "docs/performance.md").read_text()
    assert performance_table() in page, "paste what `python -m bench --table` prints into docs/performance.md"
