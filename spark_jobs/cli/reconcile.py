"""`metaq reconcile`: list what a restored database or broker has pulled apart, and the commands that mend it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from meta_client.cli.options import connected
from meta_client.cli.security_options import security_options
from spark_jobs.cli.options import fail, side_options, spark_options, time_ms
from zk.brokers.cluster import known_broker_ids
from zk.decisions.generation import read_generations

LIMIT: Final = 1_000
LIMIT_MAX: Final = 1_000_000  # all are in memory


@click.command()
@side_options(is_required=True)
@click.option(
    "--zk",
    envvar="METAQ_ZK",
    show_envvar=True,
    metavar="HOST:PORT[/CHROOT]",
    help="ZooKeeper, which knows whether the database went back in time, and all brokers.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="Transactions to list of each class.",
)
@security_options
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(
    url: str,
    directories: tuple[Path, ...],
    markers: tuple[str, ...],
    since: str | None,
    offsets: str | None,
    zk: str | None,
    limit: int,
    master: str,
    settings: Mapping[str, str],
    *,
    as_json: bool,
) -> None:
    """List what has come apart after a database or a broker was restored to an earlier time, and the commands.

    Reads one snapshot of the database and the journals of all brokers, and joins them as metaq certify does. Changes
    nothing. Of each transaction that came apart it shows both sides, topics, offsets, LSNs and times, and what to do:

    \b
    in doubt   prepared, and its end is unknown: metaq txn commit, or rollback
    missing    rows are there, messages are gone (a restored broker): send them again from the rows
    orphan     messages are published, rows are gone (a restored database): make the rows again, or compensate
    mixed      one side has committed, another has rolled back
    duplicate  a row, or a branch, is there twice

    Stop coordinators first: they roll back what their logs do not know. Resolvers may run with --zk known to them: a
    database that went back in time is noticed, and nothing is rolled back there before metaq txn init --restored.

    \b
    metaq reconcile --database $DATABASE_URL --marker orders.gtrid --zk zk1:2181
                    --dir /var/lib/metaq/0 --dir /var/lib/metaq/1

    Without --marker, a column that names each transaction or message, nothing tells of rows whose decision is deleted:
    what only messages tell of counts as unknown.

    Exit code: 0 nothing needs a person, 1 something does or is unknown, or the counts do not add up, 2 it could not be
    done.
    """
    since_ms = 0 if since is None else time_ms(since)
    try:
        from spark_jobs.certificate.database import DatabaseProblem, Marker
        from spark_jobs.certificate.join import JoinRequest
        from spark_jobs.cli.running import check_places, ending_with_line, progress_of, started_spark
        from spark_jobs.reconciliation.reconcile import ClusterFacts
        from spark_jobs.reconciliation.reconcile import reconcile as reconciled
    except ModuleNotFoundError as error:
        fail(f"no module {error.name}: run pip install 'metaq-broker[spark,postgres]'")
    with ending_with_line(master, DatabaseProblem):
        request = JoinRequest(directories, url, tuple(map(Marker.parse, markers)), since_ms, offsets)
        check_places(master, directories)
        facts = None
        if zk is not None:
            with connected(zk) as client:  # before the database is read: resolvers raise generations meanwhile
                brokers = frozenset(known_broker_ids(client.session))
                facts = ClusterFacts(read_generations(client.session), brokers)
        with started_spark("reconcile", master, settings) as spark:
            found = reconciled(spark, request, facts, limit, progress_of("reconcile"))
    if as_json:
        click.echo(json.dumps(found))
    else:
        from spark_jobs.reconciliation.text import lines

        for line in lines(found):
            click.echo(line)
    raise SystemExit(1 if found["needs_person"] else 0)
