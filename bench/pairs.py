"""Two checkouts in turns: A B A B, each case in a process of its own, ratio by ratio.

A pair is two runs next to one another, so that what else the machine does weighs on both.
"""

import json
import os
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parents[1]
TIMES = "client_us", "broker_us", "others_us", "client_faults"  # of a message, in the detail of most cases


@dataclass(frozen=True, slots=True)
class Pair:
    """The same case in the other checkout and in this one, as `--json` prints it."""

    other: dict[str, Any]
    ours: dict[str, Any]

    def ratios(self) -> dict[str, float]:
        """Return ours / other's of the value, and of what both say of a message."""
        found = {"value": self.ours["value"] / self.other["value"]}
        for name in TIMES:
            ours, other = self.ours["detail"].get(name), self.other["detail"].get(name)
            if ours is not None and other:
                found[name] = ours / other
        return found


def run_pairs(case: str, other: Path, count: int) -> list[Pair]:
    """Run *case* *count* times in *other* and here, in turns, and print each pair's ratios. Raises ClickException."""
    pairs = []
    for number in range(1, count + 1):
        pairs.append(Pair(_run(other, case), _run(HERE, case)))
        click.echo(f"{case} {number}/{count}  {_text(pairs[-1].ratios())}")
    return pairs


def summary(case: str, pairs: list[Pair]) -> str:
    """Return the median of the pairs' ratios, with the least and the greatest, and the medians of both sides."""
    every = [pair.ratios() for pair in pairs]
    lines = [f"{case}: this checkout / the other, median of {len(pairs)} pairs (least to greatest)"]
    for name in every[0]:
        ratios = [each[name] for each in every if name in each]
        other, ours = (statistics.median(_of(side, name) for side in sides) for sides in _sides(pairs))
        middle = statistics.median(ratios)
        lines.append(f"  {name:14}{middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})  {other:,.4g} -> {ours:,.4g}")
    return "\n".join(lines)


def _sides(pairs: list[Pair]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return [pair.other for pair in pairs], [pair.ours for pair in pairs]


def _of(run: dict[str, Any], name: str) -> float:
    figure: float = run["value"] if name == "value" else run["detail"].get(name, 0.0)
    return figure


def _text(ratios: dict[str, float]) -> str:
    return "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())


def _run(checkout: Path, case: str) -> dict[str, Any]:
    """Run *case* with the interpreter and the code of *checkout*."""
    python = checkout / ".venv/bin/python"
    if not python.exists():
        raise click.ClickException(f"{checkout} has no .venv: run `make setup` there")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(python), "-m", "bench", "--json", "--rounds", "1", case]
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise click.ClickException(f"{case} failed in {checkout}:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(lines[0])
    return found
