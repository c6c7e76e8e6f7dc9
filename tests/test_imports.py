"""Folders form a DAG: imports point down only, no two folders need each other, and no files form a circle."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
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


@cache
def modules() -> dict[str, Path]:
    """Every module of our packages by its dotted name."""
    found = {}
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below *node*, except those only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield child
        yield from running(child)


@cache
def imports(*, of_types: bool = False) -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports, at the top or inside a function; *of_types*: or for types."""
    ours = modules()
    found: dict[str, set[str]] = {name: set() for name in ours}
    for name, path in ours.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree) if of_types else running(tree):
            match node:
                case ast.Import(names=aliases):
                    found[name] |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=str(module), names=aliases):
                    below = {f"{module}.{alias.name}" for alias in aliases}
                    found[name] |= below & ours.keys() or {module}
    return {name: (targets & ours.keys()) - {name} for name, targets in found.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def folder(module: str) -> str:
    """The folder of a module; a file at the top of a package (errors, client) is a layer of its own."""
    path = modules()[module].relative_to(ROOT)
    return str(path if len(path.parts) == 2 else path.parent)


def folder_imports() -> dict[str, set[str]]:
    """Folder -> the other folders that its files import."""
    found: dict[str, set[str]] = {folder(name): set() for name in modules()}
    for name, targets in imports().items():
        found[folder(name)] |= {folder(target) for target in targets} - {folder(name)}
    return found


def mutual_folders() -> dict[tuple[str, str], str]:
    """Pairs of folders that import each other -> an import of the direction with fewer."""
    between: dict[tuple[str, str], list[str]] = {}
    for name, targets in imports().items():
        for target in sorted(targets):
            between.setdefault((folder(name), folder(target)), []).append(f"{name} imports {target}")
    found = {}
    for one, other in combinations(sorted({each for pair in between for each in pair}), 2):
        if (down := between.get((one, other))) and (up := between.get((other, one))):
            found[one, other] = "; ".join(down if len(down) < len(up) else up)
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_down(package: str) -> None:
    upward = {top: files for top, files in siblings_imported_by(package).items() if top not in MAY_IMPORT[package]}
    assert not upward


def test_the_rule_has_something_to_check() -> None:
    assert siblings_imported_by("meta_broker").keys() == {"journal", "zk", "meta_client"}
    assert {"zk.tree.nodes", "zk.errors"} <= imports()["zk.tree.paths"]


def test_no_files_form_a_circle() -> None:
    assert circles(imports(of_types=True)) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}) == [["b", "c"]]


def test_no_two_folders_import_each_other() -> None:
    assert mutual_folders() == {}


def test_no_folders_form_a_circle() -> None:
    assert circles(folder_imports()) == []


def test_only_commands_import_the_command_line() -> None:
    """Rules that a page or a job shares with a command are not the command's."""
    above = {
        f"{name} imports {target}"
        for name, targets in imports().items()
        for target in targets
        if "cli" in target.split(".") and "cli" not in name.split(".")
    }
    assert above == set()
