"""`python -m bench CASE...`: run cases, print each value, its baseline and the ratio. No case: list them."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import history
from bench.cases import CASES
from bench.pairs import run_pairs, summary
from bench.result import Result, median
from bench.table import performance_table
from bench.usage import WholeRun

RECORDED_ROUNDS = 5


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASE]...")
@click.option("--all", "run_all", is_flag=True, help="Run every case.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object a line: case, value, unit, baseline, ratio, detail."
)
@click.option("--table", "as_table", is_flag=True, help="Print the table of docs/performance.md; run nothing.")
@click.option("--record", "is_recorded", is_flag=True, help="Append the results to bench/history.jsonl.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 99),
    help=f"Run each case so often, and take the median. Default: 1, with --record {RECORDED_ROUNDS}.",
)
@click.option("--pairs", type=click.IntRange(1, 99), help="Run so often here and in the checkout --against, in turns.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, set up with `make setup`.",
)
def main(
    cases: tuple[str, ...],
    run_all: bool,
    as_json: bool,
    as_table: bool,
    is_recorded: bool,
    rounds: int | None,
    pairs: int | None,
    against: Path | None,
) -> None:
    """Measure through the public client API: broker and client are two processes on this machine.

    Every value stands beside a baseline measured in the same run: for bytes, the same bytes over loopback into a
    preallocated file in another process and back by sendfile; for transactions, fdatasync calls per second. The last
    column compares it with the median of the last runs that bench/history.jsonl has of a machine like this one.
    Exits with 1 if a bar is not met.

    On a busy machine compare two checkouts: `--pairs 5 --against ../other` prints the ratio of each pair of runs, of
    the value and of processor time a message, which other programs hardly change.
    """
    if (pairs is None) is not (against is None):
        raise click.UsageError("--pairs and --against go together")
    for case in cases:
        if case not in CASES:
            raise click.UsageError(f"no case {case!r}: there are {', '.join(CASES)}")
    if as_table:
        print(performance_table())
        return
    if not cases and not run_all:
        for name, case_ in CASES.items():
            print(f"{name:24}{case_.bar!s:24}{(case_.run.__doc__ or '').strip().splitlines()[0]}")
        return
    names = tuple(CASES) if run_all else cases
    if pairs is not None and against is not None:
        for name in names:
            print(summary(name, run_pairs(name, against, pairs)))
        return
    rounds = rounds or (RECORDED_ROUNDS if is_recorded else 1)
    results = [_run(case, rounds, as_json=as_json) for case in names]
    if not as_json:
        Console().print(_table(results))
        for result in results:
            print(f"{result.case}:", ", ".join(f"{key} {value}" for key, value in result.detail.items()))
    if is_recorded:
        history.record(results)
    if not all(result.meets(CASES[result.case].bar) for result in results):
        sys.exit(1)


def _run(case: str, rounds: int, *, as_json: bool) -> Result:
    if sys.stderr.isatty():
        print(f"{case} ...", file=sys.stderr, flush=True)
    results = []
    for _ in range(rounds):
        whole = WholeRun()
        result = CASES[case].run(case)
        results.append(replace(result, detail=result.detail | whole.detail()))
    result = median(results, CASES[case].bar)
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    return result


def _table(results: list[Result]) -> Table:
    table = Table("case", "value", "unit", "baseline", "ratio", "bar", "met", "before")
    for result in results:
        bar, change = CASES[result.case].bar, history.change(result, history.earlier(result.case))
        table.add_row(
            result.case,
            f"{result.value:,.1f}",
            result.unit,
            f"{result.baseline:,.1f}",
            f"{result.ratio:.3f}",
            str(bar),
            "yes" if result.meets(bar) else "NO",
            "" if change is None else f"{change:+.0%}",
        )
    return table


if __name__ == "__main__":
    main()
