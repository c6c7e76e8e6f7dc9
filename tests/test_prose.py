"""Docstrings open with a verb or a noun. `docs/plain-words.txt` has the words that documents avoid."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("bench", "journal", "meta_broker", "meta_client", "spark_jobs", "zk")
CLAUSE = re.compile(
    r"(What|Who|Whom|Whose|Whoever|Whatever|Where|Wherever|How|Whether|When|Why|Which|That|As|Of|For|If|It|Its|Is|Has|"
    r"Those|These|Nobody|Somebody|Everybody|Everything|Nothing)\b"
)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_open_with_a_verb_or_a_noun(package: str) -> None:
    found = [(path, line, text) for path in (ROOT / package).rglob("*.py") for line, text in docstrings(path)]
    assert found
    wrong = [f"{path.relative_to(ROOT)}:{line}: {text[:80]}" for path, line, text in found if CLAUSE.match(text)]
    assert not wrong, "\n".join(wrong)
