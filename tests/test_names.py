"""No public class name stands twice: a reader who meets a name knows which class it is."""

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "meta_broker", "meta_client", "spark_jobs", "zk")


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
