"""Names and annotations: the public name of a type stands once, and a result is a type, not a text.

A reader who meets a name knows which class or alias it is, and what a word means that once stood for many things. No
error is told from a value by asking whether it is a str.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "meta_broker", "meta_client", "spark_jobs", "zk")
ALIAS: Final = re.compile(r"[A-Z]\w*[a-z]\w*")  # no constant, and no T
PEP_249: Final = {"Error"}  # each of our stand-ins for a driver has one
# Each of these names of functions stood for seven things and more: its one meaning, and the files that define it so.
ONE_MEANING: Final = {
    "look": ("none: check, poll, scan, read, collect", set[str]()),
    "note": ("none: add, record, update, mark", set[str]()),
    "take": (
        "mark messages as consumed in a database's transaction",
        {
            "meta_client/aio/offset_stores.py",
            "meta_client/consumer/offset_stores/in_transaction.py",
            "meta_client/consumer/offset_stores/moves.py",
        },
    ),
    "forget": (
        "drop what is recorded of a decided transaction or branch, as XA's forget does",
        {
            "journal/state/transaction_store.py",
            "meta_client/aio/coordinator.py",
            "meta_client/coordinator/coordinator.py",
            "meta_client/coordinator/decision_log.py",
            "meta_client/operations/branches.py",
            "meta_client/producer/xa.py",
        },
    ),
    "finish": (
        "carry out what was decided: the second phase",
        {"meta_client/transactions/resolver.py", "meta_client/transactions/transaction.py"},
    ),
    "decide": (
        "make a transaction's or a batch's decision durable",
        {
            "meta_client/aio/coordinator.py",
            "meta_client/aio/transactions/shield.py",
            "meta_client/batches/decision.py",
            "meta_client/coordinator/decision_log.py",
            "meta_client/transactions/deciding.py",
            "meta_client/transactions/frameworks/django.py",
            "meta_client/transactions/sqlalchemy.py",
            "meta_client/transactions/table.py",
        },
    ),
}


@cache
def trees() -> dict[Path, ast.Module]:
    """Every file of our packages. Parsed in a test: each worker imports this module."""
    return {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@pytest.mark.parametrize("name", ONE_MEANING)
def test_a_word_that_had_many_meanings_has_one(name: str) -> None:
    found = {
        str(path)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    }
    meaning, files = ONE_MEANING[name]
    assert found == files, f"{name} means: {meaning}. Name anything else by its own standard term"


def members_of(union: ast.expr) -> set[str]:
    if isinstance(union, ast.BinOp) and isinstance(union.op, ast.BitOr):
        return members_of(union.left) | members_of(union.right)
    return {ast.unparse(union)}


def returns_text_or_else(annotation: ast.expr) -> bool:
    """Return whether a union of *annotation* has text beside a value; None is no value."""
    unions = (members_of(node) for node in ast.walk(annotation) if isinstance(node, ast.BinOp))
    return any("str" in members and members - {"str", "None"} for members in unions)


def test_no_function_returns_text_beside_a_value() -> None:
    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
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


def tuple_lengths() -> dict[str, int]:
    """Name of each NamedTuple -> the number of its fields."""
    return {
        node.name: sum(isinstance(field, ast.AnnAssign) for field in node.body)
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
    }


def test_no_union_has_tuples_that_may_be_equal() -> None:
    """A NamedTuple equals any other with the same fields: in a union they could not be told apart by ==."""
    lengths = tuple_lengths()
    alike = {
        f"{path}:{union.lineno} {sorted(members)}"
        for path, tree in trees().items()
        for union in ast.walk(tree)
        if isinstance(union, ast.BinOp)
        for members in [members_of(union) & lengths.keys()]
        if len({lengths[name] for name in members}) < len(members)
    }
    assert alike == set(), "make them frozen dataclasses with slots, or msgspec structs"


def type_name(node: ast.stmt) -> str | None:
    """Name of the class, type alias or type variable that a statement of a module defines; None: none."""
    match node:
        case (
            ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name))
        ):
            return name if ALIAS.match(name) else None
    return None


def public_types() -> dict[str, list[str]]:
    """Name of each public class, alias and type variable -> the modules that define it."""
    found: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in tree.body:
            if (name := type_name(node)) is not None and name not in PEP_249:
                found.setdefault(name, []).append(str(path))
    return found


def test_a_name_of_a_type_stands_once_besides_asyncio_twins() -> None:
    """Public names of meta_client.aio are those of their twins for threads."""
    types = public_types()
    assert {"Lsn", "JournalLocation", "Client"} <= types.keys()
    twice = {}
    for name, paths in types.items():
        of_threads = [path for path in paths if not path.startswith("meta_client/aio/")]
        if len(of_threads) > 1 or len(paths) - len(of_threads) > 1:
            twice[name] = paths
    assert twice == {}
