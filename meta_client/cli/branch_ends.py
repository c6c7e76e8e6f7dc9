"""`metaq txn commit`, `rollback`, `complete` and `forget`: one branch, or thousands at once."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX
from journal.records.xid import XaKey, Xid
from meta_client.cli.branch_options import (
    broker_option,
    directory_option,
    opened_branches,
    parse_word,
    where_of,
    yes_option,
)
from meta_client.cli.output import confirm, databases_option, json_option, operator, print_rows, zk_option
from meta_client.coordinator.errors import CannotEnlist
from meta_client.operations.branch_input import WantedBranch, read_branches
from meta_client.operations.branch_text import key_word
from meta_client.operations.many_ends import FAILED, BranchOutcome, EndState, ManyEnds, ManyVerb, counts
from meta_client.operations.progress import Progress
from meta_client.operations.text import tell
from meta_client.transactions.databases import table_at
from meta_client.transactions.names import TableName, table_of
from meta_client.transactions.table import DecisionTable

PARTIAL: Final = 1  # exit status
STDIN: Final = "-"
_MANY: Final = """

    Many at once: name several, or give a file with --from, - for stdin: lines of branches, or the --json output of
    metaq txn list, metaq txn doctor or metaq reconcile, of which those are taken that offer this verb. All of it is
    read and looked at before, and shown; repeat the command after an interruption. Exit status 1 if not all are ended.

    \b
    metaq reconcile --json ... > apart.json
    metaq txn {verb} --from apart.json {why}--dry-run
    metaq txn {verb} --from apart.json {why}
    """
_TEXTS: Final = {
    ManyVerb.COMMIT: """Commit BRANCH by hand: its messages are published.

    Its coordinator is told so when it asks (XA_HEURCOM). Refused if a row of its decision table says otherwise.
    """,
    ManyVerb.ROLLBACK: """Roll BRANCH back by hand: its messages are never seen.

    Its coordinator is told so when it asks (XA_HEURRB). Refused if a row of its decision table says otherwise.
    """,
    ManyVerb.COMPLETE: """Take BRANCH away, neither committed nor rolled back.

    For what has been done in another way. Its messages are never seen, and its coordinator is told that nobody vouches
    for the outcome (XA_HEURHAZ).
    """,
    ManyVerb.FORGET: """Drop what is on record of BRANCH: what was decided by hand, and what the ledger holds.

    A coordinator that asks later is told that there is no such branch.
    """,
}
_why_option = click.option("--why", required=True, metavar="TEXT", help="Reason, kept on record.")
_who_option = click.option("--who", metavar="TEXT", help="Operator who answers for it.  [default: user@host]")
_despite_option = click.option(
    "--despite-row", is_flag=True, help="End branches although their rows say otherwise, and ask no database."
)


_AddOption = Callable[[Any], Any]


def end_command(verb: ManyVerb) -> click.Command:
    """Return the command that ends branches by *verb*."""

    def end(branches: tuple[str, ...], zk: str, directory: Path | None, broker_id: int | None, **how: Any) -> None:
        source = how.pop("source")
        if source is None and not branches:
            raise click.UsageError("Missing argument 'BRANCH': name branches, or give --from FILE")
        if source is not None and branches:
            raise click.UsageError("give branches, or --from FILE, not both")
        if source == STDIN and not how["yes"] and not how["is_dry"]:
            raise click.UsageError("--from - leaves no stdin for an answer: give --yes, or --dry-run, or a file")
        wanted = [*_read(source), *(WantedBranch(parse_word(text), broker_id) for text in branches)]
        _end(verb, wanted, zk, directory, **how)

    by_hand: tuple[_AddOption, ...] = ()
    if verb is not ManyVerb.FORGET:
        by_hand = _why_option, _who_option, databases_option, _despite_option
    options: list[_AddOption] = [
        click.argument("branches", nargs=-1, metavar="[BRANCH]..."),
        zk_option,
        directory_option,
        broker_option,
        click.option("--from", "source", metavar="FILE|-", help="File that names the branches; - for stdin."),
        *by_hand,
        click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be done; change nothing."),
        yes_option,
        json_option,
    ]
    command: Any = end
    for add_option in reversed(options):
        command = add_option(command)
    why = "" if verb is ManyVerb.FORGET else "--why '...' "
    return click.command(name=verb.value, help=_TEXTS[verb] + _MANY.format(verb=verb.value, why=why))(command)


def _read(source: str | None) -> list[WantedBranch]:
    if source is None:
        return []
    if source == STDIN:
        return read_branches("stdin", sys.stdin.buffer)
    try:
        with Path(source).open("rb") as file:
            return read_branches(source, file)
    except OSError as error:
        raise click.UsageError(f"{source} can't be read: {error.strerror}") from error


def _end(
    verb: ManyVerb,
    wanted: list[WantedBranch],
    zk: str,
    directory: Path | None,
    *,
    is_dry: bool,
    yes: bool,
    as_json: bool,
    why: str = "forgotten",
    who: str | None = None,
    databases: Sequence[str] = (),
    despite_row: bool = False,
) -> None:
    who = who or operator()
    for option, text, bytes_max in (("--why", why, WHY_BYTES_MAX), ("--who", who, WHO_BYTES_MAX)):
        if not 1 <= len(text.encode()) <= bytes_max:
            raise click.BadParameter(f"it is not 1 to {bytes_max} bytes long", param_hint=f"'{option}'")
    xids = [one.name.xid if isinstance(one.name, XaKey) else one.name for one in wanted]
    with opened_branches(zk, directory) as branches, _tables(xids, () if despite_row else databases) as tables:
        ends = ManyEnds(branches, verb, tables, despite_rows=despite_row)
        plan = ends.plan(wanted)
        _summarize(verb, plan)
        _warn_of_rows(ends, plan)
        if is_dry:
            _show(plan, as_json=as_json)
            is_partial = any(one.state in FAILED - {EndState.TO_DO} for one in plan)
        else:
            to_do = sum(one.state is EndState.TO_DO for one in plan)
            if to_do and not yes:
                confirm(_question(verb, plan))
            with Progress("ended", "branches", to_do) as progress:
                ended = list(ends.carry_out(plan, who, why, progress.at))
            _show(ended, as_json=as_json)
            if not as_json and verb is not ManyVerb.FORGET and [one.state for one in ended] == [EndState.DONE]:
                (place,) = [f"{key_word(one.key)} {where_of(directory, one.broker)}" for one in ended]
                click.echo(f"once its coordinator has been told: metaq txn forget {place}")
            is_partial = any(one.state in FAILED for one in ended)
    if is_partial:
        sys.exit(PARTIAL)


def _question(verb: ManyVerb, plan: Sequence[BranchOutcome]) -> str:
    if len(plan) > 1:
        to_do = sum(one.state is EndState.TO_DO for one in plan)
        return f"{verb.value} these {to_do:,} branches: nothing undoes it. Go on?"
    (one,) = plan
    if verb is ManyVerb.FORGET:
        return f"forget that {one.reason}?"
    return f"{verb.value} {one.key.xid} on broker {one.broker}, {one.messages} messages: nothing undoes it. Go on?"


def _summarize(verb: ManyVerb, plan: Sequence[BranchOutcome]) -> None:
    """Say on stderr what is to be done."""
    to_do = [one for one in plan if one.state is EndState.TO_DO]
    brokers = ", ".join(map(str, sorted({one.broker for one in to_do}))) or "none"
    messages, size = sum(one.messages for one in to_do), sum(one.bytes for one in to_do)
    others = "".join(f"; {state}: {count:,}" for state, count in counts(plan).items() if state != EndState.TO_DO.value)
    text = (
        f"{verb.value}: {len(to_do):,} branches, {messages:,} messages of {size:,} bytes, on brokers: {brokers}{others}"
    )
    click.echo(text, err=True)


def _warn_of_rows(ends: ManyEnds, plan: Sequence[BranchOutcome]) -> None:
    """Say on stderr how many branches may be decided by a row that was not looked at."""
    if count := ends.without_row(plan):
        tell(f"warning: {count:,} branches have decision tables that were not looked at: give --database URL")


def _show(outcomes: Sequence[BranchOutcome], *, as_json: bool) -> None:
    """Print every branch for scripts; for people those that need them, and counts."""
    if as_json:
        print_rows([_row(one) for one in outcomes], as_json=True)
        return
    if failed := [_row(one) for one in outcomes if one.state in FAILED - {EndState.TO_DO}]:
        print_rows(failed, ("key", "broker", "state", "reason"), as_json=False)
    click.echo(" ".join(f"{state.replace(' ', '_')}={count}" for state, count in counts(outcomes).items()) or "nothing")


def _row(one: BranchOutcome) -> Mapping[str, object]:
    known = {"xid": str(one.key.xid), "key": str(one.key), "broker": one.broker, "messages": one.messages}
    return known | {"state": one.state.value, "reason": one.reason or None}


@contextlib.contextmanager
def _tables(xids: Sequence[Xid], urls: Sequence[str]) -> Iterator[Mapping[TableName, DecisionTable]]:
    """Open the decision tables at *urls*, if one may decide about *xids*. Raises Unreachable, CannotEnlist."""
    with contextlib.ExitStack() as stack:
        tables: dict[TableName, DecisionTable] = {}
        if any(table_of(xid) is not None for xid in xids):
            for url in dict.fromkeys(urls):
                try:
                    table = stack.enter_context(contextlib.closing(table_at(url)))
                except CannotEnlist as error:
                    raise click.ClickException(f"{error}; --despite-row asks no database") from error
                tables[table.identity.name] = table
        yield tables
