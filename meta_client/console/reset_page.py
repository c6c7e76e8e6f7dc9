"""Page about the reset of a group: the plan of `metaq groups reset`, and with `--allow-changes` its execution."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from meta_client.client import Client
from meta_client.console.groups_page import group_of, read_listings
from meta_client.console.page import Asked, InvalidQuery, Values
from meta_client.console.reads import Unknown
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import ZooKeeperOffsetStore
from meta_client.operations.reset import move_row, partitions_of, run_reset
from meta_client.operations.reset_options import SavedIn, Shift, Target, parse_place, parse_target
from meta_client.operations.reset_plan import ResetRefused
from zk.groups.listing import list_group

T = TypeVar("T")
Moves = list[dict[str, object]]

PLAN_S: Final = 20.0
SHIFT_MAX: Final = 10_000  # messages that a page looks back over


async def read_reset(asked: Asked) -> Values:
    """Plan a reset, as `metaq groups reset` shows it without --yes."""
    group, query, client = group_of(asked), asked.query, asked.settings.client
    where, to = query.get("where", "").strip(), query.get("to", "").strip()
    values: Values = {"group": group, "where": where, "to": to, "moves": None, "members": {}}
    values |= {"command": "", "seen": "", "result": None}
    listings = await read_listings(client, asked.reads, [group])
    if isinstance(listings, Unknown):
        return values | {"moves": listings}
    values["members"] = listings[0].members
    if not to:
        return values
    target, places = _target(to), _places(where)
    moves = await asked.reads.call(("plan", group, where, to), lambda: plan(client, group, places, target), PLAN_S)
    values["moves"] = moves
    values["seen"] = "" if isinstance(moves, Unknown) else fingerprint(moves)
    words = ("groups", "reset", group, *where.split(), "--to", to, "--yes")
    return values | {"command": asked.settings.command(*words)}


def plan(client: Client, group: str, places: list[Any], target: Target) -> Moves:
    """Return the rows of a reset that is not carried out. Blocks. Raises MetaError, ZooKeeperError."""
    return _run(client, group, places, target, None)


def carry_out_reset(client: Client, group: str, where: str, to: str, seen: str) -> Moves | Unknown:
    """Reset the group, if its offsets are those whose plan was confirmed; durable on return. Refused while members are
    alive. Blocks. Raises MetaError, ZooKeeperError, InvalidQuery."""
    target, places = _target(to), _places(where)
    if fingerprint(plan(client, group, places, target)) != seen:
        return Unknown("the group is not where it was when this was confirmed: look again")
    return _run(client, group, places, target, 0.0)


def _run(client: Client, group: str, places: list[Any], target: Target, members: float | None) -> Moves:
    check_group(group)
    keys = partitions_of(client, list_group(client.session, group), places)
    if isinstance(target, int) and len(keys) != 1:
        raise ResetRefused(f"{target}, an offset, is for one partition: name it, like orders/0-3")
    moves = run_reset(client, ZooKeeperOffsetStore(client.session, group), group, keys, target, members)
    return [move_row(group, move, is_done=members is not None) for move in moves]


def fingerprint(moves: Moves) -> str:
    """Return where the group is, in a word. The plan itself may move, as to the end of what grows."""
    places = sorted((str(row["topic"]), str(row["partition"]), row["before"]) for row in moves)
    return hashlib.sha256(json.dumps(places).encode()).hexdigest()


def _target(text: str) -> Target:
    """Read a target; files are for the command. Raises InvalidQuery."""
    if text.startswith("file:"):
        raise InvalidQuery("a file is for the command: it is on your machine, not the browser's")
    target = _parsed(parse_target, text)
    assert not isinstance(target, SavedIn)
    if isinstance(target, Shift) and abs(target.messages) > SHIFT_MAX:
        raise InvalidQuery(f"a page looks over {SHIFT_MAX} messages at most: use the command")
    return target


def _places(text: str) -> list[Any]:
    """Read topics and partitions, as the command takes them. Raises InvalidQuery."""
    return [_parsed(parse_place, word) for word in text.split()]


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidQuery(f"Invalid value: {error}") from error
