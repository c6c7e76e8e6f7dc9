"""Recorded runs, one JSON object a line: commit, machine, interpreter, figures. A new figure is compared with earlier
ones of the same machine and interpreter."""

import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.result import Result

PATH = Path(__file__).with_name("history.jsonl")
COMPARED_RUNS = 5


def record(results: list[Result], path: Path = PATH) -> None:
    """Append one line for each result."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"time": when, "commit": _commit(), "machine": machine(), "python": interpreter()}
    with path.open("a") as file:
        for result in results:
            file.write(json.dumps(about | result.as_json()) + "\n")


def lines(path: Path = PATH) -> list[dict[str, Any]]:
    """Return every recorded result, the oldest first."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def earlier(case: str, path: Path = PATH) -> list[dict[str, Any]]:
    """Return the last runs of *case* on this machine and interpreter, the oldest first."""
    here = (case, machine(), interpreter())
    runs = [line for line in lines(path) if (line["case"], line["machine"], line.get("python")) == here]
    return runs[-COMPARED_RUNS:]


def change(result: Result, runs: list[dict[str, Any]]) -> float | None:
    """Return by what fraction *result*'s value exceeds the median of *runs*; None without runs."""
    if not runs:
        return None
    before: float = statistics.median(run["value"] for run in runs)
    return result.value / before - 1


def machine() -> str:
    """Return processor, cores and system: figures of different machines are not compared."""
    models = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}"


def interpreter() -> str:
    """Return version and compiler: builds of one version differ by a quarter in the cost of Python code."""
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _commit() -> str:
    """Return the short hash, with a + if the tree has changes; `unknown` outside a checkout."""
    words = ["git", "-C", str(PATH.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
