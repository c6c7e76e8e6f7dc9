"""Names and annotations: a public class name stands once, and a result is a type, not a text.

A reader who meets a name knows which class it is, and nobody tells an error from a value by asking whether it is a str.
"""

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "meta_broker", "meta_client", "spark_jobs", "zk")


def members_of(union: ast.expr) -> set[str]:
    if isinstance(union, ast.BinOp) and isinstance(union.op, ast.BitOr):
        return members_of(union.left) | members_of(union.right)
    return {ast.unparse(union)}


def returns_text_or_else(annotation: ast.expr) -> bool:
    """Return whether a union of *annotation* has text beside a value; None is no value."""
    unions = (members_of(node) for node in ast.walk(annotation) if isinstance(node, ast.BinOp))
    return any("str" in members and members - {"str", "None"} for members in unions)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_returns_text_beside_a_value(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and returns_text_or_else(node.returns)
    ]
    assert found == [], "raise an error, or return a small result with a name"


@pytest.mark.parametrize(
    ("annotation", "is_found"),
    [
        ("str | None", False),
        ("int | Literal['latest']", False),
        ("bytes | str", True),
        ("str | Unknown | None", True),
        ("dict[str, Account | str]", True),
    ],
)
def test_unions_that_are_found(annotation: str, is_found: bool) -> None:
    assert returns_text_or_else(ast.parse(annotation, mode="eval").body) is is_found


def public_classes() -> dict[str, list[str]]:
    """Name of each public class -> the modules that define it."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    return found


def test_a_class_name_stands_once_besides_asyncio_twins() -> None:
    """Public names of meta_client.aio are those of their twins for threads."""
    twice = {}
    for name, paths in public_classes().items():
        of_threads = [path for path in paths if not path.startswith("meta_client/aio/")]
        if len(of_threads) > 1 or len(paths) - len(of_threads) > 1:
            twice[name] = paths
    assert twice == {}
