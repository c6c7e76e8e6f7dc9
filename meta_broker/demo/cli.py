"""`metaq demo`: the main job, end to end, with three kills."""

import json
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from rich.console import Console

from meta_broker.demo.environment import running_environment
from meta_broker.demo.generator import INVOICES, write_orders
from meta_broker.demo.kills import INVOICES_MIN
from meta_broker.demo.orders import read_invoices
from meta_broker.demo.producers import log_to
from meta_broker.demo.report import RunReport
from meta_broker.demo.run import DemoRun
from meta_broker.demo.verdict import judge
from meta_client.cli.main import Failure
from meta_client.protocol.integers import INT64_MAX


@click.command()
@click.option(
    "--orders",
    "first",
    type=click.Path(path_type=Path),
    metavar="FILE...",
    help="CSV files in the Online Retail layout, instead of made-up invoices.",
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="")
@click.option(
    "--invoices", type=click.IntRange(INVOICES_MIN, 100_000), help=f"Invoices to make up.  [default: {INVOICES}]"
)
@click.option(
    "--seed", type=click.IntRange(0, INT64_MAX), help="Seed of the made-up invoices and the kills; printed at the end."
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Work in this new directory, and keep it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def demo(
    first: Path | None, more: tuple[Path, ...], invoices: int | None, seed: int | None, keep: Path | None, as_json: bool
) -> None:
    """The main job: an order is in the database and on the broker, or in neither, whatever is killed.

    Starts its own ZooKeeper, broker and PostgreSQL. Each invoice is one XA transaction from one of four
    producer threads: its rows into PostgreSQL, one message a line to topic order-lines, one to invoices. Three
    consumers sum revenue by country. On the way the broker is killed at a random moment, and between a prepare and
    its commit, and the producers between prepare and commit. At the end database, broker, consumers and a Spark
    audit of the broker's log must agree.

    \b
    metaq demo
    metaq demo --orders 2010-12-01.csv 2010-12-02.csv
    metaq demo --seed 7 --keep /tmp/demo

    Exit code: 0 all agree, 1 they differ, 2 it could not be done.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    if first is None and more:
        raise Failure(f"{more[0]}: unexpected argument: name files of orders after --orders")
    if first is not None and invoices is not None:
        raise Failure("--invoices says how many to make up, --orders that none are: give one of the two")
    paths = [] if first is None else [first, *more]  # click takes only the first for the option
    given = read_invoices(paths)
    if paths and len(given) < INVOICES_MIN:
        raise Failure(f"--orders holds {len(given)} invoices: three kills need {INVOICES_MIN} or more, name more files")
    started = time.monotonic()
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        if keep is not None:
            directory = _new(keep)
        else:
            temporary = tempfile.TemporaryDirectory(prefix="metaq-demo-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        log_to(directory / "consumers.log")
        if not paths:
            paths = [directory / "orders.csv"]
            write_orders(paths[0], invoices or INVOICES, seed)
            given = read_invoices(paths)
        show = stack.enter_context(_watching(console))
        show("starting ZooKeeper, PostgreSQL and the broker", "")
        run = DemoRun(stack.enter_context(running_environment(directory, paths)), given, show)
        run.perform(random.Random(seed))  # noqa: S311 - repeatable is the point
        evidence, rolled_back = run.gather(), run.environment.producers.rolled_back
    report = RunReport(judge(evidence), run.kills, rolled_back, evidence.audit, seed, time.monotonic() - started)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        console.print(report.table())
        for line in report.lines():
            console.print(line, highlight=False, soft_wrap=True)
    raise SystemExit(1 if report.problems else 0)


def _new(keep: Path) -> Path:
    """Make the directory *keep*, unless it is there and empty."""
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise Failure(f"--keep {keep} is not empty: name a new directory")
    except OSError as error:
        raise Failure(f"--keep {keep}: {error.strerror}: name another directory") from error
    return keep.resolve()


@contextmanager
def _watching(console: Console) -> Iterator[Callable[[str, str], None]]:
    """Yield what shows a step and its progress: in one line that moves; without a terminal, a line a step."""
    if not console.is_terminal:
        yield lambda step, progress: None if progress else console.print(f"demo: {step}", highlight=False)
        return
    with console.status("") as status:
        yield lambda step, progress: status.update(f"{step}  {progress}")
