"""`metaq outbox`: messages that wait as rows of a database, and what moves them to brokers."""

import contextlib
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from meta_client.cli.decision_table import database_option, raised_again
from meta_client.cli.options import connected
from meta_client.cli.output import admin_port_option, confirm, json_option, print_counts, print_rows, zk_option
from meta_client.logs.setup import LogFormat, log_options, set_up_logs
from meta_client.operations.option_types import Parsed, Seconds, parse_expected
from meta_client.operations.text import age_text, printable, tell
from meta_client.producer.partitioners import ByAttribute
from meta_client.protocol.compression import Codec
from meta_client.protocol.integers import INT32_MAX, INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from meta_client.outbox.relay import Relay

LISTED_MAX: Final = 1_000
COLUMNS: Final = ("id", "topic", "attribute", "bytes", "age", "reason")


@click.group()
def outbox() -> None:
    """Messages that services add to their own transactions as rows, and a relay moves to brokers, exactly once.

    A service needs no broker to commit. Consumers wait for the relay. `Client.transaction` needs no relay, and its
    messages are seen at once.

    \b
    metaq outbox init --database postgresql://owner@host/shop
    metaq outbox relay --database postgresql://relay@host/shop
    metaq outbox list --database postgresql://relay@host/shop
    """


@outbox.command()
@database_option
@click.option("--sql", "shows_sql", is_flag=True, help="Print the statements for a migration; execute none.")
def init(url: str, shows_sql: bool) -> None:
    """Make the tables of an outbox, and the decision table that its relay needs. What is there stays.

    --sql prints the outbox's statements alone: those of the decision table come from `metaq txn init --sql`.
    """
    from meta_client.outbox import tables
    from meta_client.outbox.engines import engine_at, opened
    from meta_client.transactions import databases
    from meta_client.transactions.table import KEEP_S

    if shows_sql:
        click.echo(tables.ddl(engine_at(url).dialect), nl=False)
        return
    identity = databases.init(url, KEEP_S)
    with opened(url) as connection:
        tables.create(connection)
    click.echo(f"outbox {tables.TABLE}, decision table {identity.name.table_id}")


@outbox.command()
@database_option
@zk_option
@click.option(
    "--rows", "rows_max", type=click.IntRange(1, 10_000), default=4_000, show_default=True, help="Messages of a batch."
)
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(0.001),
    default=0.05,
    show_default=True,
    help="Seconds between two looks at an empty outbox.",
)
@click.option(
    "--compression", type=click.Choice([codec.label for codec in Codec]), help="Compress where a topic allows it."
)
@click.option(
    "--round-robin", is_flag=True, help="Spread messages of one attribute over partitions; their order is lost."
)
@click.option(
    "--expect",
    "expected",
    type=Parsed("partitions", parse_expected),
    multiple=True,
    metavar="TOPIC=BROKER:COUNT,...",
    help="Number of partitions of a topic on each broker, as in orders=0:4,1:4. Without it one that is down when this"
    " begins is not known, and messages of an attribute may overtake those it has. Repeatable.",
)
@click.option("--once", is_flag=True, help="End when nothing more can be moved now.")
@admin_port_option
@log_options()
@json_option
def relay(
    url: str,
    zk: str,
    rows_max: int,
    interval_s: float,
    compression: str | None,
    round_robin: bool,
    expected: tuple[tuple[str, dict[int, int]], ...],
    once: bool,
    admin_port: int | None,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """Move messages from the outbox to brokers, oldest first, until Ctrl-C.

    A batch of rows is deleted and its messages are sent in one transaction, both or neither: a relay may be killed at
    any moment. Any number may run: they take turns, and one goes on where another died. Messages of one attribute go to
    one partition, in order. One that a broker refuses is set aside, and the others go on: `metaq outbox list`. While a
    topic has no broker, its messages wait. Exit status of --once: 1 if some still wait or are set aside.
    """
    from meta_client.outbox.errors import outbox_errors
    from meta_client.outbox.relay import Relay

    if round_robin and expected:
        raise click.UsageError("--expect is for messages of one attribute, which --round-robin spreads: leave out one")
    if len(dict(expected)) < len(expected):
        raise click.UsageError("--expect names a topic twice: give its brokers at once, as in orders=0:4,1:4")
    set_up_logs(log_level, log_format)
    with connected(zk) as client, contextlib.ExitStack() as stack:
        partitioner = None if round_robin else ByAttribute(dict(expected))
        producer = client.producer(compression=compression, partitioner=partitioner)
        moving = Relay(client, url, producer, rows_max=rows_max, interval_s=interval_s)
        stack.callback(moving.close)
        moving.check()
        if admin_port is not None:
            from meta_client.outbox.relay_metrics import serve_relay_admin  # imported on first use

            stack.enter_context(serve_relay_admin(moving, admin_port))
        _run_passes(moving, once=once, as_json=as_json)
        if once:
            if moving.trouble is None:
                with outbox_errors():
                    moving.read_status()
            if moving.trouble is not None or moving.status is None or moving.status.waiting or moving.status.aside:
                tell(f"warning: not all of it was moved: {moving.trouble or 'see metaq outbox list'}")
                raise SystemExit(1)


def _run_passes(moving: "Relay", *, once: bool, as_json: bool) -> None:
    """Run passes, and show the counts when they have changed, once a second at most."""
    shown, show_at = moving.counts, 0.0
    with raised_again() as check:
        while True:
            again = moving.run_pass()
            check()
            is_over = once and not again
            if moving.counts != shown and (is_over or time.monotonic() >= show_at):
                shown, show_at = moving.counts, time.monotonic() + 1.0
                print_counts(asdict(shown), as_json=as_json)
            if is_over:
                return
            if not again:
                time.sleep(moving.pause_s)
                check()


@outbox.command(name="list")
@database_option
@json_option
def list_waiting(url: str, as_json: bool) -> None:
    """Count what waits, name brokers that hold messages back, and list those that were set aside, with the reason.

    Once the cause is mended: `metaq outbox retry`. To give one up, delete its row in metaq_outbox_aside. More than
    100,000 are estimated. Exit status 1 if some are set aside, or relays wait for `metaq outbox adopt`.
    """
    from meta_client.outbox import contents, rows
    from meta_client.outbox.decision_rows import adoption_trouble
    from meta_client.outbox.engines import opened

    with opened(url) as connection:
        found, aside = contents.status(connection), contents.aside_rows(connection, LISTED_MAX)
        held, deferred = rows.unconfirmed(connection), contents.deferred_counts(connection)
        trouble = adoption_trouble(connection, rows.read_state(connection).batches)
    if as_json:
        unconfirmed = [{"gtrid": branch.gtrid, "broker_id": branch.broker_id} for branch in held]
        listed = {
            "trouble": trouble,
            "is_estimated": found.is_estimated,
            "unconfirmed": unconfirmed,
            "deferred": deferred,
            "rows": [row._asdict() for row in aside],
        }
        click.echo(json.dumps(found._asdict() | listed))
    else:
        oldest = "" if found.oldest_age_s is None else f", the oldest for {age_text(found.oldest_age_s)}"
        moved = "never" if found.relayed_age_s is None else f"{age_text(found.relayed_age_s)} ago"
        about = "about " if found.is_estimated else ""
        click.echo(f"{about}{found.waiting} wait{oldest}; last moved: {moved}; {found.aside} set aside")
        for branch in held:
            click.echo(f"messages for broker {branch.broker_id} wait until it has committed {branch.gtrid}")
        for broker_id, count in deferred.items():
            click.echo(f"{count} of them wait for broker {broker_id}, and others pass them")
        if aside:
            shown = [row._asdict() | {"age": age_text(row.age_s), "reason": printable(row.reason)} for row in aside]
            print_rows(shown, COLUMNS, as_json=False)
        if found.aside > len(aside):
            tell(f"the first {len(aside)} of {found.aside} are listed")
        if trouble is not None:
            click.echo(trouble)
    if found.aside or trouble is not None:
        raise SystemExit(1)


@outbox.command(context_settings={"ignore_unknown_options": True})  # ids may be below 0
@database_option
@click.argument("ids", nargs=-1, type=click.IntRange(INT64_MIN, INT64_MAX), metavar="[ID]...")
@click.option("--all", "is_all", is_flag=True, help="Every message that was set aside.")
def retry(url: str, ids: tuple[int, ...], is_all: bool) -> None:
    """Have messages that were set aside wait for the relay again, in their old places."""
    from meta_client.outbox import rows
    from meta_client.outbox.engines import opened

    if bool(ids) == is_all:
        raise click.UsageError("name the ids that `metaq outbox list` shows, or --all")
    with opened(url) as connection:
        count = rows.retry(connection, None if is_all else ids)
    click.echo(f"{count} wait again")


@outbox.command()
@database_option
@click.argument("broker", type=click.IntRange(0, INT32_MAX))
@click.option("--yes", is_flag=True, help="Ask no question.")
def release(url: str, broker: int, yes: bool) -> None:
    """Have messages wait no longer for BROKER, which never comes back. `metaq outbox list` shows them.

    Those that it may not have committed are lost with it, or come late if it comes back. Others go to other brokers,
    once every relay has been started again, without BROKER in its --expect. Exit status 1 if declined.
    """
    from meta_client.outbox import rows
    from meta_client.outbox.engines import opened

    if not yes:
        confirm(f"is broker {broker} gone for good, with the messages that it has not confirmed?")
    with opened(url) as connection:
        given_up, put_back = rows.release(connection, broker)
    click.echo(f"{given_up} branches given up, {put_back} messages may go elsewhere")


@outbox.command()
@database_option
@zk_option
@click.option("--yes", is_flag=True, help="Ask no question.")
def adopt(url: str, zk: str, yes: bool) -> None:
    """Have relays go on though another decision table decided their last batch. `metaq outbox list` tells.

    So it is where both tables were dropped and made again, and in a copy: there, messages wait that the original moves.
    Delete the rows of those first. Brokers commit what relays had decided. Exit status 1 if declined.
    """
    from meta_client.outbox.earlier_batches import adopt as adopt_outbox
    from meta_client.outbox.engines import opened

    if not yes:
        confirm("does every message wait here that is not moved yet, and no other?")
    with connected(zk) as client, opened(url) as connection:
        count = adopt_outbox(client, connection)
    click.echo(f"relays go on; {count} branches of batches before are committed")
