"""`metaq audit`: prove from the journal's bytes that nothing was lost and nothing doubled."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_jobs.audit.report import AuditReport, AuditVerdict, CheckResult
from spark_jobs.cli.options import (
    fail,
    shown,
    spark_options,
)

_STYLES = {
    AuditVerdict.HOLDS: "green",
    AuditVerdict.FAILS: "bold red",
    AuditVerdict.UNPROVEN: "yellow",
    AuditVerdict.UNKNOWN: "yellow",
}


@click.command()
@click.argument("directories", metavar="DIRECTORY...", nargs=-1, required=True)
@click.option(
    "--indexes", "with_indexes", is_flag=True, help="Compare the partitions' index files with the journal, too."
)
@click.option(
    "--archive",
    help="Archive of its segments, a directory or URL, read as one journal with DIRECTORY.",
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a directory, a line each.")
def audit(
    directories: tuple[str, ...],
    archive: str | None,
    master: str,
    settings: Mapping[str, str],
    *,
    with_indexes: bool,
    as_json: bool,
) -> None:
    """Prove from its bytes that the journal in each DIRECTORY lost nothing and doubled nothing.

    DIRECTORY is a broker's data directory, live or dead, or an archive of its segment files, also by its URL
    (s3://...), which the workers read by themselves. It is only read; a live broker is not disturbed, and what it
    appends meanwhile may or may not be counted. Several are audited one after the other by one Spark.

    \b
    records      every record reads back as it was written
    frames       every message reads back, and none is uncounted
    offsets      every offset of every partition is taken exactly once
    identity     no batch number and no message id is used twice
    outcomes     every branch ends at most once and publishes exactly what was put
    checkpoints  every checkpoint says what the records below it add up to
    range        something vouches for where the journal begins, and how far it went at least
    archive      the archive holds every segment that its manifest lists, unchanged
    indexes      every partition's index points at its messages, and leaves none out (--indexes)

    A check holds, FAILS, is unproven (what speaks against it lies where bytes do not read back), or unknown (nothing
    vouches for it, as for the end of a journal without a checkpoint). The report says from which LSN to which, and by
    what. Branches in doubt are no failure: they are what a coordinator has yet to decide.

    \b
    On this machine:   metaq audit /var/lib/metaq
    All brokers:       metaq audit /archive/broker-*
    An object store:   metaq audit s3://bucket/broker-0
    On a cluster:      metaq audit /archive/broker-0 --master spark://spark-master:7077
                       (metaq installed on every worker, the directory mounted there, both at the same path;
                       another Python there: --conf spark.pyspark.python=/opt/metaq/bin/python)
    For a script:      metaq audit /var/lib/metaq --json | jq .checks

    Exit code: 0 all checks hold, 1 some do not, 2 the audit could not be done.
    """
    if archive is not None and len(directories) > 1:
        fail("--archive is of one DIRECTORY: audit the others by commands of their own")
    started, verdicts = time.monotonic(), []
    for report in _reports(directories, archive, master, settings, with_indexes=with_indexes):
        if as_json:
            click.echo(json.dumps(report.as_json()))
        else:
            print_report(report)
        verdicts.append(report.holds)
    _progress(f"done in {time.monotonic() - started:.1f} s")
    raise SystemExit(0 if all(verdicts) else 1)


def _reports(
    directories: Sequence[str], archive: str | None, master: str, settings: Mapping[str, str], *, with_indexes: bool
) -> Iterator[AuditReport]:
    try:
        from spark_jobs.audit.audit import audit_journal
        from spark_jobs.cli.running import check_places, ending_with_line, started_spark
        from spark_jobs.source.locations import location_of
    except ModuleNotFoundError as error:
        fail(f"no module {error.name}: the audit runs on Spark: run pip install 'metaq-broker[spark]'")
    then = ", then run the audit again"
    with ending_with_line(master, then=then):
        other = None if archive is None else location_of(archive)
        places = [location_of(directory) for directory in directories]
        check_places(master, [*places, *([] if other is None else [other])])
        _progress(f"starting Spark at {master}")
        with started_spark("audit", master, settings, then=then) as spark:
            for place in places:
                yield audit_journal(spark, place, archive=other, with_indexes=with_indexes, on_progress=_progress)


def _progress(line: str) -> None:
    click.echo(f"audit: {line}", err=True)


def print_report(report: AuditReport) -> None:
    """Print the table, the totals, the examples, and a final sentence."""
    console = Console()
    table = Table(title=Text(f"Audit of {shown(report.path)}"), title_justify="left", show_edge=False)
    for heading in ("check", "verdict", "judged", "against it"):
        table.add_column(heading)
    for check in report.checks:
        table.add_row(check.name, Text(check.verdict.value, _STYLES[check.verdict]), check.judged, _against(check))
    console.print(table)
    totals = report.totals
    console.print(
        f"LSN {totals.first_lsn} to {totals.end_lsn} in {totals.segments} segments, {totals.bytes:,} bytes; "
        f"branches: {totals.prepared:,} prepared, {totals.committed:,} committed, {totals.rolled_back:,} rolled back, "
        f"{totals.in_doubt:,} in doubt, {totals.active:,} active",
        soft_wrap=True,
        highlight=False,
    )
    for one in report.evidence:
        style, word = ("green", "by") if one.is_vouched else ("yellow", "UNKNOWN:")
        line = Text(f"  LSN {one.since} to {one.until}  {shown(one.claim)} ")
        console.print(line.append(f"{word} {shown(one.source)}", style), soft_wrap=True, highlight=False)
    for check in report.checks:
        if not check.examples:
            continue
        console.print(f"\n{check.name}, the first {len(check.examples)} of {sum(check.counts.values()):,}:")
        for example in check.examples:
            console.print(Text(f"  LSN {example.lsn}  {example.problem}: {shown(str(example))}"), soft_wrap=True)
    click.echo(report.sentence)


def _against(check: CheckResult) -> str:
    counts = ", ".join([f"{number:,} {problem}" for problem, number in check.counts.items()] + list(check.unknown))
    return f"{counts} ({check.unproven:,} unproven)" if check.unproven else counts
