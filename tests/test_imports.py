"""Folders form a DAG: imports point down only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT: dict[str, set[str]] = {"journal": set(), "zk": set(), "meta_client": {"journal", "zk"}}
MAY_IMPORT |= {name: {"journal", "zk", "meta_client"} for name in ("meta_broker", "spark_jobs")}
SIBLINGS = MAY_IMPORT.keys() | {"tests", "bench", "examples"}


def siblings_imported_by(package: str) -> dict[str, set[str]]:
    """Sibling package -> the files of *package* that import it, at the top or inside a function."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute here"
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top in SIBLINGS and top != package:
                    found.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_down(package: str) -> None:
    upward = {top: files for top, files in siblings_imported_by(package).items() if top not in MAY_IMPORT[package]}
    assert not upward


def test_the_rule_has_something_to_check() -> None:
    assert siblings_imported_by("meta_broker").keys() == {"journal", "zk", "meta_client"}
