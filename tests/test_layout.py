"""A file of the product, or of its benchmark, holds one concept: a long or short one says why it is so."""

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "zk", "meta_client", "meta_broker", "spark_jobs", "bench")
LINES_MAX: Final = 350
LINES_MIN: Final = 25
FILES: Final = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def description(path: Path) -> str:
    return " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())


def test_a_long_file_says_why_it_is_one() -> None:
    long = [path for path in FILES if lines(path) > LINES_MAX]
    assert [str(path.relative_to(ROOT)) for path in long if "Longer than others:" not in description(path)] == []


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if lines(path) < LINES_MIN and path.name != "__init__.py"],
    ids=lambda path: path.stem,
)
def test_a_short_file_says_why_it_stands_alone(path: Path) -> None:
    told = description(path)
    assert "Stands alone:" in told or "Imported when" in told, f"{path}: join it with its other half, or say why not"
