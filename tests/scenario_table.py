"""Table of the ancestor's scenarios: which tests show each one.

A test names the scenarios it shows with `@pytest.mark.scenario("U08", ...)`, a transcript in its first line.
`python -m tests.scenario_table` writes them into the column "Shown by" of docs/scenarios.md; the other columns are
written by hand.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
DOCUMENT: Final = ROOT / "docs/scenarios.md"
ROW: Final = re.compile(r"^\| ([ABHTU]\d\d) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_NAMES: Final = re.compile(r"\b([ABHTU])(\d\d)(?: to \1(\d\d))?")


def shown_by() -> dict[str, list[str]]:
    """Scenario -> the transcripts and tests that show it, in order."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests/scenarios").glob("*.txt")):
        first = path.read_text().partition("\n")[0]
        for letter, begin, end in _NAMES.findall(first):
            for number in range(int(begin), int(end or begin) + 1):
                found.setdefault(f"{letter}{number:02d}", []).append(path.name)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.scenario(" in (text := path.read_text()):
            for scenario, test in _marked(ast.parse(text)):
                found.setdefault(scenario, []).append(f"{path.relative_to(ROOT)}{test}")
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (scenario, test) for each marker; the test of a module's own marker is blank."""
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=marks):
                yield from ((scenario, f"::{name}") for mark in marks for scenario in _scenarios(mark))
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from ((scenario, "") for mark in ast.walk(value) for scenario in _scenarios(mark))


def _scenarios(mark: ast.AST) -> list[str]:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.scenario":
        return [ast.literal_eval(argument) for argument in mark.args]
    return []


def updated(document: str) -> str:
    """Return *document* with the column "Shown by" of today's tests."""
    tests = shown_by()

    def row(match: re.Match[str]) -> str:
        scenario, text, _, remark = match.groups()
        return f"| {scenario} | {text} | {', '.join(f'`{test}`' for test in tests.get(scenario, ()))} | {remark} |"

    return ROW.sub(row, document)


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
