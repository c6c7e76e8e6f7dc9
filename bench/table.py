"""The table of docs/performance.md: the last recorded figure of each case beside its baseline and its bar."""

from typing import Any

from bench import history
from bench.cases import CASES
from bench.result import Result

HEADER = """\
| Case | What | Value | Baseline | Ratio | Bar | Met |
|---|---|---|---|---|---|---|"""


def performance_table() -> str:
    """Return the table of every recorded case, with the time and place of the run."""
    runs = {line["case"]: line for line in history.lines()}
    recorded = {name: runs[name] for name in CASES if name in runs}
    places = {
        f"Recorded {run['time'][:10]} at {run['commit']}: {run['machine']}, {run.get('python', 'unknown interpreter')}."
        for run in recorded.values()
    }
    return "\n".join([HEADER, *(_row(name, run) for name, run in recorded.items()), "", *sorted(places)])


def _row(name: str, run: dict[str, Any]) -> str:
    case, result = CASES[name], Result(name, run["value"], run["unit"], run["floor"], run["detail"])
    what = " ".join((case.run.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
    value = f"{_short(result.value)} {result.unit}"
    if "messages_s" in result.detail:
        value += f", {result.detail['messages_s']:,} messages/s"
    is_met = "yes" if result.meets(case.bar) else "**no**"
    cells = f"`{name}`", what, value, _short(result.baseline), f"{result.ratio:.2f}", str(case.bar), is_met
    return f"| {' | '.join(cells)} |"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
