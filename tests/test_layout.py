"""A product file holds one concept: none is longer than a sitting, and a short one says why it stands alone."""

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "zk", "meta_client", "meta_broker", "spark_jobs")
LINES_MAX: Final = 350
LINES_MIN: Final = 25
FILES: Final = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_too_long() -> None:
    assert [str(path.relative_to(ROOT)) for path in FILES if lines(path) > LINES_MAX] == []


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if lines(path) < LINES_MIN and path.name != "__init__.py"],
    ids=lambda path: path.stem,
)
def test_a_short_file_says_why_it_stands_alone(path: Path) -> None:
    told = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    assert "Stands alone:" in told or "Imported when" in told, f"{path}: join it with its other half, or say why not"
