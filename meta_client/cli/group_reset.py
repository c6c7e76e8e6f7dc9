"""`metaq groups reset`: sets a group's offsets while no member can continue from the old ones."""

import contextlib
from typing import Final, Literal

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, refuse_away, zk_option
from meta_client.cli.stores import opened_store, store_option
from meta_client.consumer.config import check_group
from meta_client.operations.option_types import Parsed
from meta_client.operations.placement import away_brokers
from meta_client.operations.reset import alive_members, members_text, move_row, partitions_of, run_reset
from meta_client.operations.reset_options import Target, parse_member_rule, parse_place, parse_target
from meta_client.operations.reset_plan import Move
from meta_client.operations.text import tell
from zk.groups.listing import list_group
from zk.tree.nodes import Partition

UNKNOWN: Final = "the reset ended while it was being stored, perhaps done, in whole or in part"


@click.command()
@click.argument("group")
@click.argument("places", nargs=-1, type=Parsed("place", parse_place), metavar="[TOPIC[/B-P]]...")
@click.option(
    "--to",
    "targets",
    multiple=True,
    type=Parsed("target", parse_target),
    metavar="TARGET",
    help="Target, as listed above.",
)
@store_option
@click.option(
    "--members",
    type=Parsed("rule", parse_member_rule),
    metavar="RULE",
    default="refuse",
    show_default=True,
    help="Rule while members are alive: refuse; wait:S seconds for them to leave; or force, unless they are genuine.",
)
@click.option("--yes", is_flag=True, help="Do it. Without it, only show the change.")
@zk_option
@json_option
def reset(
    group: str,
    places: tuple[tuple[str | None, Partition | None], ...],
    targets: tuple[Target, ...],
    store: str | None,
    members: float | Literal["force"],
    yes: bool,
    zk: str,
    as_json: bool,
) -> None:
    """Set GROUP to other offsets, and show them before and after, per partition.

    Of all its topics and partitions, unless TOPIC, TOPIC/B-P, or /B-P for that partition of each topic, name some.
    Without --yes nothing is changed. TARGET is one of

    \b
      earliest          the first message that is left
      latest            the end: what is there now is passed over
      4096              an offset, of one partition
      +100, -100        so many messages on, or back, from where the group is
      2010-12-05T10:00  what was put at this time or later; ISO 8601, local time
      group:NAME        where group NAME is, as far as it has stored that
      file:FILE         what a reset, or describe, printed into FILE with --json

    Refused while a member of the group that reads these topics is alive: it would go on where it is, and store that.
    Stop the members, or give them time to leave with --members wait:SECONDS. While it works, the partitions belong to
    this command: members that start wait for it. Nothing is ever set outside of what a partition holds, or inside of
    a message. Exit status 1 where it is done, but a known broker is away: its partitions may be left as they are.

    With --members force they may be alive: in one step with its offset each partition is taken from its member, which
    can't store the old one any more, notices, and goes on from the new one. What it is working on at that moment is
    not undone. A genuine member can't be overruled, and is named.

    --store names where a group keeps its offsets that does so elsewhere than in ZooKeeper: an SQLAlchemy URL, with
    # and the table's name behind it if that is another one, or the directory of a LocalOffsetStore.

    \b
      metaq groups reset billing --to 2010-12-05T10:00
      metaq groups reset billing orders --to earliest --yes
      metaq groups reset billing orders/0-3 --to 4096 --yes
      metaq groups reset billing --to -100 --members wait:30 --yes
      metaq groups reset billing-test --to group:billing --yes
      metaq groups reset billing --to latest --yes --json > before.jsonl
      metaq groups reset billing --to file:before.jsonl --yes
      metaq groups reset ledger --store postgresql+psycopg:///shop --to latest --yes
    """
    check_group(group)
    if len(targets) != 1:
        raise click.UsageError("name one target, such as --to earliest, --to 2010-12-05T10:00 or --to group:NAME")
    (target,) = targets
    is_forced = members == "force"
    if is_forced and store is not None:
        raise click.UsageError("--members force is for offsets in ZooKeeper: a database can't overrule members")
    with (
        contextlib.ExitStack() as at_end,
        connected(zk) as client,
        opened_store(client, group, store, is_for_reading=not yes) as offsets,
    ):
        listing = list_group(client.session, group)
        keys = partitions_of(client, listing, places)
        if isinstance(target, int) and len(keys) != 1:
            raise click.UsageError(f"--to {target}, an offset, is for one partition: name it, like orders/0-3")
        if not (yes or is_forced) and (alive := alive_members(listing, keys)):
            tell(f"warning: {members_text(group, alive)}")
        steps: list[tuple[list[Move], bool | None]] = []

        def record(moves: list[Move], is_done: bool | None) -> None:
            if not steps:  # at the end, since a slow reader would hold up members; and also after Ctrl-C
                at_end.callback(lambda: _print(group, *steps[-1], as_json=as_json))
            steps.append((moves, is_done))

        run_reset(client, offsets, group, keys, target, members if yes else None, record)
        is_each_named = bool(places) and all(partition is not None for _, partition in places)
        away = [] if is_each_named else away_brokers(client)
    if not yes:
        click.echo("nothing was changed: say --yes to do it", err=True)
    refuse_away(away)


def _print(group: str, moves: list[Move], is_done: bool | None, *, as_json: bool) -> None:
    rows = [move_row(group, move, is_done=is_done) for move in moves]
    try:
        print_rows(rows, as_json=as_json)
    except OSError:
        if is_done is not False:  # this is what undoes it
            begin = "the group was reset" if is_done else UNKNOWN
            click.echo(f"{begin}; what standard output did not take:", err=True)
            print_rows(rows, as_json=as_json, err=True)
        raise
    if is_done is None:
        click.echo(f"{UNKNOWN}: compare with `metaq groups describe`, before you repeat or undo it", err=True)
