"""`metaq txn doctor`: every side of every transaction in doubt, what follows from it, and the certain part done."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from meta_client.cli.options import check_any_broker, connected, why_no_broker
from meta_client.cli.output import (
    age_option,
    databases_option,
    json_option,
    logs_option,
    operator,
    print_rows,
    zk_option,
)
from meta_client.doctor.advice import advice_on
from meta_client.doctor.applier import Applied, apply_all, record_finding, verbs_of
from meta_client.doctor.cases import Case, cases_of
from meta_client.doctor.evidence import problems
from meta_client.doctor.rows import IN_TABLE, JsonRow, block, problem_row, row_of, tell
from meta_client.doctor.sources import AGE_S, command_line, gather
from meta_client.doctor.verdicts import CERTAIN, Verdict
from meta_client.operations.progress import Progress
from meta_client.producer.xa_verbs import XaVerbs

NEEDS_A_PERSON: Final = 1  # exit status
TELL_AFTER_S: Final = 1.0
ALIKE_MAX: Final = 10  # branches with one verdict and reason that are told of one by one


@click.command()
@zk_option
@databases_option
@logs_option
@age_option(
    AGE_S, "Seconds for which a branch is left to its own process. With a prepared branch, this command takes as long."
)
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="Do what is certain, and nothing else. What is mixed, or a hazard, goes on its broker's ledger.",
)
@json_option
def doctor(
    zk: str, databases: tuple[str, ...], logs: tuple[Path, ...], age_s: float, applies: bool, as_json: bool
) -> None:
    """Examine every transaction in doubt after a crash: what began it, what each side says, and what to do.

    Brokers are found in ZooKeeper; name the databases and the coordinators' logs. A side that can't be asked is named,
    and counts as unknown. Without --apply nothing is changed.

    \b
    metaq txn doctor --database postgresql://host/shop
    metaq txn doctor --database postgresql://host/shop --database postgresql://host/bills --decisions /var/lib/shop
    metaq txn doctor --database postgresql://host/shop --apply

    Certain is what a row of a decision table says, or a decision in a coordinator's log; and, where there is neither,
    the row of a rollback, which --apply writes as resolvers do: a transaction that still lives fails at its own row.
    Everything else comes with its reason, the commands that would end it, and what they risk.

    \b
    Exit status: 0  nothing needs a person (what is certain may wait for --apply, or for a resolver)
                 1  something does: it is mixed, a hazard or undecidable, or a side could not be asked
                 2  no side could be asked at all
    """
    source = click.get_current_context().get_parameter_source
    again = command_line(
        zk if source("zk") is ParameterSource.COMMANDLINE else "",
        databases if source("databases") is ParameterSource.COMMANDLINE else (),
        logs,
    )
    with connected(zk) as client:
        if not databases and not logs:
            check_any_broker(client, zk)
        nobody = why_no_broker(client, zk)
        found = gather(client, databases, logs, age_s, _step)
        now_ms = time.time_ns() // 1_000_000
        cases = cases_of(found, now_ms, age_s)
        verbs = verbs_of(client)
        done = _apply(cases, verbs) | _record_findings(cases, verbs, again) if applies else {}
    no_broker = [("brokers", nobody)] if nobody else []
    rows = [problem_row(*problem) for problem in (*no_broker, *problems(found))]
    for case in cases:
        if case.is_over:
            continue
        for side in case.sides:
            row = row_of(case, side, advice_on(case, side, again), now_ms)
            if (one := done.get(id(side))) is not None:
                tell(row, one)
            rows.append(row)
    _show(rows, again, as_json=as_json)
    if any(row["needs_person"] for row in rows):
        sys.exit(NEEDS_A_PERSON)


def _apply(cases: list[Case], verbs: XaVerbs) -> dict[int, Applied]:
    """Apply certain cases; return the action by each side's identity."""
    certain = [case for case in cases if any(side.verdict in CERTAIN for side in case.sides)]
    with Progress(
        "ended", "branches", sum(side.verdict in CERTAIN for case in certain for side in case.sides)
    ) as progress:
        done: dict[int, Applied] = {}
        for one in apply_all(certain, verbs):
            done[id(one.side)] = one
            progress.at(len(done))
    return done


def _record_findings(cases: list[Case], verbs: XaVerbs, again: str) -> dict[int, Applied]:
    """Record mixed and hazardous branches that are not on record yet; they still need repair by hand."""
    done: dict[int, Applied] = {}
    for case in cases:
        for side in case.sides:
            if side.may_be_noted:
                with _step(f"putting {case.name} on record"):
                    done[id(side)] = record_finding(case, side, operator(), advice_on(case, side, again).reason, verbs)
    return done


def _show(rows: list[JsonRow], again: str, *, as_json: bool) -> None:
    if as_json:
        print_rows(rows, as_json=True)
        return
    print_rows(rows, IN_TABLE, as_json=False, empty="nothing is in doubt")
    alike: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["verdict"] not in (Verdict.DONE.value, Verdict.WAIT.value):
            alike[kind := (row["verdict"], row["reason"])] += 1
            if alike[kind] <= ALIKE_MAX:
                click.echo()
                for line in block(row):
                    click.echo(line)
    if hidden := sum(max(0, count - ALIKE_MAX) for count in alike.values()):
        click.echo(f"\n{hidden:,} more are like those above: --json shows them")
    for what, count in (
        ("certain: --apply does it", sum(bool(row["certain"]) and not row["done"] for row in rows)),
        ("done", sum(row["done"] is not None and not row["needs_person"] for row in rows)),
        ("for a person", sum(bool(row["needs_person"]) for row in rows)),
    ):
        if count:
            click.echo(f"\n{count} {what}")
    if sum("commit" in row["verbs"] or "rollback" in row["verbs"] for row in rows) > 1:
        click.echo(f"many at once: {again} --json > FILE, leave in FILE what is to end alike, and")
        click.echo(
            "              metaq txn commit --from FILE --why '...'  or  metaq txn rollback --from FILE --why '...'"
        )


@contextmanager
def _step(what: str) -> Iterator[None]:
    """Show the current step on stderr once it takes longer than a moment."""
    timer = threading.Timer(TELL_AFTER_S, lambda: click.echo(f"{what} ...", err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
