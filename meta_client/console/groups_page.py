"""Pages about consumer groups: lag, owners, members; and dead letters."""

import itertools
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from meta_client.client import Client
from meta_client.console.brokers import read_away
from meta_client.console.page import Asked, NotHere, Rows, Values
from meta_client.console.payload import preview
from meta_client.console.reads import Reads, Unknown
from meta_client.console.rendering import path
from meta_client.consumer.dead_letters.reading import read_dead_letters, read_group
from meta_client.operations.group_ends import ask_ends, with_all_partitions
from meta_client.operations.group_lag import FAULTS, Ends, faults, group_row, lag_of, partition_row
from zk.groups.listing import GroupListing, list_groups, read_group_names
from zk.tree.paths import is_name

GROUPS_MAX: Final = 50  # of a page: each takes its own reads of ZooKeeper
LIST_S: Final = 8.0
LETTERS_MAX: Final = 100  # of one directory
LINES_MAX: Final = 8  # of a chart


async def read_groups(asked: Asked) -> Values:
    client = asked.settings.client
    names = await asked.reads.call("groups", lambda: list(filter(is_name, read_group_names(client.session))))
    if isinstance(names, Unknown):
        return {"groups": names}
    page = Rows(tuple(names[asked.start : asked.start + GROUPS_MAX]), asked.start, len(names))
    listings = await read_listings(client, asked.reads, list(page.rows))
    if isinstance(listings, Unknown):
        return {"groups": listings}
    ends, unknown = await read_ends(client, asked.reads, listings)
    return {
        "groups": [group_row(one, ends) for one in listings],
        "faults": faults(listings, ends),
        "unknown": unknown,
        "rows": page,
        "after": asked.start + GROUPS_MAX if asked.start + GROUPS_MAX < len(names) else None,
    }


async def read_group_page(asked: Asked) -> Values:
    group = group_of(asked)
    listings = await read_listings(asked.settings.client, asked.reads, [group])
    if isinstance(listings, Unknown):
        return {"group": group, "listing": listings}
    (listing,) = listings
    if not listing.members and not listing.topics:
        raise NotHere(f"there is no group {group}")
    ends, unknown = await read_ends(asked.settings.client, asked.reads, listings)
    rows = [partition_row(listing, one, ends) for one in listing.progress]
    return {
        "group": group,
        "listing": listing,
        "total": group_row(listing, ends),
        "rows": Rows.of(rows, asked.start),
        "page_at": lambda start: path("groups", group, start=start or None),
        "faults": faults(listings, ends),
        "fault_states": {state.value for state in FAULTS},
        "unknown": unknown,
        "sample": {"chart": "lag", "time": round(time.time(), 1), "values": _lag_by_topic(listing, ends)},
    }


async def read_letters(asked: Asked) -> Values:
    found = await asked.reads.each(("letters",), asked.settings.dead_letters, _letters, LIST_S)
    resend = partial(asked.settings.command, "groups", "dead-letters", "resend")
    stores = [(str(one), letters, resend(str(one), "--all")) for one, letters in found.items()]
    return {"stores": stores, "preview": preview, "most": LETTERS_MAX}


async def read_ends(client: Client, reads: Reads, listings: list[GroupListing]) -> tuple[Ends, dict[str, str]]:
    """Ask every broker about its partitions of *listings*, each by itself; also return those that are silent or
    away, which may have partitions that no listing names."""
    ids = sorted({one.partition.broker_id for listing in listings for one in listing.progress})
    names = tuple(listing.group for listing in listings)
    answers, unknown = await reads.each_broker(
        ("ends", names), ids, lambda broker_id, tell: ask_ends(client, listings, tell, broker_id)
    )
    ends = Ends({}, frozenset(), frozenset(), {}, {}, time.time_ns() // 1_000_000)
    for one in answers:
        ends = replace(
            ends,
            ranges={**ends.ranges, **one.ranges},
            missing=ends.missing | one.missing,
            from_slaves=ends.from_slaves | one.from_slaves,
            put_ms={**ends.put_ms, **one.put_ms},
            messages={**ends.messages, **one.messages},
        )
    return ends, await read_away(client, reads, unknown)


async def read_listings(client: Client, reads: Reads, names: list[str]) -> list[GroupListing] | Unknown:
    """Read groups with all partitions of their topics."""
    return await reads.call(
        ("listings", tuple(names)),
        lambda: with_all_partitions(client, list_groups(client.session, names)),
        LIST_S,
    )


def _lag_by_topic(listing: GroupListing, ends: Ends) -> dict[str, int | None]:
    """Return the lag of each topic, None where it is unknown of a partition; of the first LINES_MAX topics."""
    found: dict[str, int | None] = {}
    for progress in listing.progress:
        lag, before = lag_of(progress, ends).bytes, found.get(progress.topic, 0)
        found[progress.topic] = None if lag is None or before is None else before + lag
    return dict(itertools.islice(sorted(found.items()), LINES_MAX))


def _letters(directory: Path) -> tuple[str, list[Any]]:
    return read_group(directory), list(itertools.islice(read_dead_letters(directory), LETTERS_MAX + 1))


def group_of(asked: Asked) -> str:
    """Return the group that the path names. Raises NotHere."""
    group = asked.path["group"]
    if not is_name(group):
        raise NotHere("a group's name has no such form")
    return group
