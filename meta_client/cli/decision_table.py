"""`metaq txn init` and `metaq txn resolver`: the table that decides about messages, and what acts on it."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import Final

import click

from meta_client.batches.finishing import BatchCounts, BatchFinisher
from meta_client.cli.options import connected
from meta_client.cli.output import admin_port_option, age_option, confirm, json_option, print_counts, zk_option
from meta_client.client import Client
from meta_client.errors import NoDatabase
from meta_client.logs.setup import LogFormat, log_options, set_up_logs
from meta_client.operations.option_types import Seconds
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.databases import Change, ddl_for, table_at
from meta_client.transactions.databases import init as make_table
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import AGE_S, Resolver
from meta_client.transactions.resolver_state import Counts
from meta_client.transactions.table import KEEP_S

NAME: Final = "metaq-resolver"
KEEP_HOURS_MAX: Final = 1_000_000  # more than a century

database_option = click.option(
    "--database",
    "url",
    envvar="DATABASE_URL",
    show_envvar=True,
    required=True,
    metavar="URL",
    help="URL: postgresql://user@host/name, mysql://user@host/name, mariadb://..., or sqlite:///path of a file.",
)


@click.command()
@database_option
@click.option("--sql", "shows_sql", is_flag=True, help="Print the statements for a migration; execute none.")
@click.option(
    "--keep-hours",
    type=click.IntRange(1, KEEP_HOURS_MAX),
    default=KEEP_S // 3600,
    show_default=True,
    help="Hours that the row of a rolled-back transaction stays. A database transaction older than half of that can't "
    "commit messages.",
)
@click.option(
    "--moved", is_flag=True, help="Declare that the table was moved here for good, and the original is out of use."
)
@click.option(
    "--copied", is_flag=True, help="Declare the table a copy: it becomes an independent one, and loses its rows."
)
@click.option(
    "--restored",
    is_flag=True,
    help="Declare that the database was restored to an earlier time, and that all that `metaq reconcile` lists is "
    "mended: resolvers go on.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@zk_option
def init(
    url: str, shows_sql: bool, keep_hours: int, moved: bool, copied: bool, restored: bool, yes: bool, zk: str
) -> None:
    """Make the table in which a database decides about messages, for `Client.transaction`.

    Nothing happens where it is there already. The table belongs to the database in which it was made: a copy, restored
    as another database, is refused until it is said what it is, because two that answer to one name would decide
    differently. Of a physical copy (a snapshot, a base backup) nobody can tell: say --copied before anything connects
    to it that reaches the original's brokers.

    A database that was restored to an earlier time is noticed by resolvers, which then roll nothing back that has no
    row, until --restored: only that asks ZooKeeper. What is prepared then and has no row, they roll back.

    \b
    metaq txn init --database postgresql://owner@host/shop
    metaq txn init --database postgresql://owner@host/shop --sql > migration.sql
    """
    if moved + copied + restored > 1:
        raise click.UsageError("--moved, --copied and --restored exclude each other")
    if shows_sql:
        click.echo(ddl_for(url, keep_hours * 3600), nl=False)
        return
    change = Change.MOVED if moved else Change.COPIED if copied else Change.KEEP
    if not yes and change is Change.MOVED:
        confirm("is the database that this table was made in out of use, for good?")
    if not yes and change is Change.COPIED:
        confirm("this table's rows go, and branches that they decide about must be known to the original: go on?")
    identity = make_table(url, keep_hours * 3600, change)
    click.echo(f"decision table {identity.name.table_id}")
    if restored:
        if not yes:
            confirm("is everything ended that metaq reconcile lists as in doubt? What is left is rolled back: go on?")
        _accept(url, zk)


def _accept(url: str, zk: str) -> None:
    with connected(zk) as client, contextlib.closing(table_at(url)) as table:
        _commit_batches(client, url)
        click.echo(f"generation {Generations(client.session, table.identity.name).accept(table)}")


def _commit_batches(client: Client, url: str) -> None:
    """Have brokers commit what relays of an outbox decided, if there is one: of that, too, rows may be lost."""
    try:
        from meta_client.outbox.earlier_batches import commit_recorded
        from meta_client.outbox.engines import opened
        from meta_client.outbox.tables import is_there
    except NoDatabase:  # without SQLAlchemy it has no outbox here
        return
    with opened(url) as connection:
        if is_there(connection):
            commit_recorded(client, connection)


@click.command()
@database_option
@zk_option
@age_option(AGE_S, "Seconds for which a branch is left to its process.")
@click.option(
    "--interval", "interval_s", type=Seconds(0.05), default=1.0, show_default=True, help="Seconds between passes."
)
@click.option("--once", is_flag=True, help="End when nothing is left, or nothing more can be done now.")
@admin_port_option
@click.option(
    "--traces",
    envvar="METAQ_TRACES",
    show_envvar=True,
    metavar="EXPORTER",
    help="Export OpenTelemetry spans of what it ends: console, otlp_proto_http or another installed one.",
)
@log_options()
@json_option
def resolver(
    url: str,
    zk: str,
    age_s: float,
    interval_s: float,
    once: bool,
    admin_port: int | None,
    traces: str | None,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """End what crashed services left of the transactions that a database decides about, until Ctrl-C.

    Every --interval it looks at branches that have been prepared for longer than --age: a row in the decision table
    says that one commits; otherwise a row is written that it is rolled back. Micro-batches that a Spark query has
    decided, and has not carried out for as long, are finished, too. Any number may run beside services and beside each
    other. Every change of the counts is a line. Exit status of --once: 1 if row and message of one may
    differ, or something could not be asked.
    """
    set_up_logs(log_level, log_format)
    with connected(zk) as client:
        table = table_at(url)
        name = table.identity.name
        table.close()
        generations = Generations(client.session, name)
        found = Resolver(_brokers(client, name), name, lambda: table_at(url), age_s, generations=generations)
        verbs = XaVerbs(client.topology, client.connections, NAME)
        batches = BatchFinisher(client.session, verbs, age_s)
        with contextlib.ExitStack() as stack:
            stack.callback(found.close)
            if traces is not None:
                from meta_client.otel.exporting import exporting  # imported on first use

                stack.enter_context(exporting(traces))
            if admin_port is not None:
                from meta_client.transactions.resolver_metrics import serve_resolver_admin  # imported on first use

                stack.enter_context(serve_resolver_admin(found, admin_port, interval_s))
            if once:
                _run_two_passes(found, batches, age_s)
            else:
                _run_passes(found, batches, interval_s, as_json=as_json)
        _show(found.counts, batches.counts, as_json=as_json)
        if once and (found.counts.hazards or found.counts.errors or batches.counts.batches_failed):
            raise SystemExit(1)


def _run_two_passes(found: Resolver, batches: BatchFinisher, age_s: float) -> None:
    """Run two passes, the age apart: a branch is first seen, and resolved if it is still there."""
    found.run_pass()
    batches.run_pass()
    time.sleep(age_s)
    found.run_pass()
    batches.run_pass()


def _run_passes(found: Resolver, batches: BatchFinisher, interval_s: float, *, as_json: bool) -> None:
    before = Counts(), BatchCounts()
    with raised_again() as check:
        while True:
            found.run_pass()
            batches.run_pass()
            if (counts := (found.counts, batches.counts)) != before:
                before = counts
                _show(*counts, as_json=as_json)
            time.sleep(interval_s)
            check()


@contextlib.contextmanager
def raised_again() -> Iterator[Callable[[], None]]:
    """Yield a function that raises again what SIGINT or SIGTERM has raised in the block: kazoo swallows any exception
    while it sends. Main thread."""
    raised: list[BaseException] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def keep_raised(handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    def check() -> None:
        if raised:
            raise raised[0]

    for number, handler in handlers.items():
        if callable(handler):  # an ignored one stays ignored
            signal.signal(number, partial(keep_raised, handler))
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _show(counts: Counts, batches: BatchCounts, *, as_json: bool) -> None:
    print_counts(asdict(counts) | batches._asdict(), as_json=as_json)


def _brokers(client: Client, name: TableName) -> Brokers:
    return Brokers(XaVerbs(client.topology, client.connections, NAME), name)
