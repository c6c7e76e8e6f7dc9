"""Text of a reconciliation, for people: what came apart, transaction by transaction, and the commands. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from meta_client.operations.text import printable, time_text

UNREADABLE_BROKER: Final = -1


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the text, line by line, without control characters."""
    for line in _all(found):
        yield printable(line)


def _all(found: dict[str, Any]) -> Iterator[str]:
    yield from _sides(found)
    by_hand = Counter(verb for one in found["transactions"] for verb in one["verbs"])
    is_many = by_hand["commit"] + by_hand["rollback"] > 1
    for one in found["transactions"]:
        yield ""
        yield from _transaction(one, () if is_many and one["verbs"] else one["commands"])
    for name, count in found["not_listed"].items():
        yield ""
        yield f"{count:,} more {name}: --limit N lists them"
    for one in found["consumers"]:
        if one["state"] != "within":
            place = f"group {one['group']}, {one['topic']} {one['partition']}: offset {one['offset']}"
            yield f"{place} is {one['state']}, which is {one['end']}: metaq groups reset --help"
    if is_many:
        yield ""
        yield from _at_once(by_hand)
    yield ""
    for account in found["accounts"]:
        mark = "=" if account["counted"] == account["expected"] else "DIFFERS FROM"
        yield f"{account['what']}: {account['counted']:,} {mark} {account['expected']:,}"
    for reason in found["refused"]:
        yield f"not to be relied on: {reason}"
    yield found["sentence"]
    for command in found["then"]:
        yield f"When all of it is mended: {command}"


def _sides(found: dict[str, Any]) -> Iterator[str]:
    database = found["database"]
    yield f"database {database['place']}, as of WAL {database['wal_lsn']}: {_restored(database)}"
    for broker in found["brokers"]:
        yield f"broker {broker['broker']}, {broker['directory']}: LSN {broker['first_lsn']} to {broker['end_lsn']}"
        for before, after in zip(broker["epochs"], broker["epochs"][1:], strict=False):
            yield (
                f"  epoch {before['epoch']} ends at LSN {before['until_lsn']}, {time_text(before['until_ms'])}; epoch "
                f"{after['epoch']} begins {time_text(after['since_ms'])}: a promotion, or a restoration, which lacks "
                f"what was written in between"
            )
    missing = found["brokers_not_given"]
    if missing is None:
        yield "whether these are all brokers is unknown: ZooKeeper was not asked (--zk)"
    elif missing:
        yield f"NOT READ: {', '.join(f'broker {number}' for number in missing)}, which ZooKeeper knows: give --dir"


def _restored(database: dict[str, Any]) -> str:
    match database["is_restored"]:
        case None:
            return "whether it was restored is unknown: ZooKeeper was not asked (--zk)"
        case True:
            return (
                f"RESTORED to an earlier time, or a copy, or emptied: its decision table is at "
                f"generation {database['generation']}, and ZooKeeper has noted {database['noted']}; resolvers roll "
                f"nothing back"
            )
    return f"not restored, as far as resolvers have noted (generation {database['generation']})"


def _at_once(by_hand: Counter[str]) -> Iterator[str]:
    """Yield the commands that end by hand all that is in doubt."""
    yield "To end what is in doubt as it says above, with this command's output of --json in FILE:"
    for verb, said in (("commit", "committed"), ("rollback", "rolled back")):
        if by_hand[verb]:
            yield f"  $ metaq txn {verb} --from FILE --why 'metaq reconcile: {said}'  # {by_hand[verb]:,} transactions"
    yield "  $ metaq txn forget --from FILE"


def _transaction(one: dict[str, Any], commands: Iterable[str]) -> Iterator[str]:
    when = "at an unknown time" if one["time_ms"] is None else time_text(one["time_ms"])
    yield f"{one['kind']}  {one['name']}  {when}"
    rows = ", ".join(f"{row['rows']} in {row['column']}" for row in one["rows"]) or "none that is marked"
    yield f"  database: rows: {rows}; decision: {one['decision'] or 'no row'}"
    for branch in one["branches"]:
        yield f"  broker {branch['broker']}: {branch['state']}, LSN {branch['lsn']} to {branch['last_lsn']}"
        for content in branch["contents"]:
            where = "" if content["offset"] is None else f" from offset {content['offset']} on"
            place = f"{content['topic']} {branch['broker']}-{content['partition']}"
            yield f"    {place}: messages: {content['messages']}{where}"
    for number in one["absent"]:
        name = "a broker whose name can't be read" if number == UNREADABLE_BROKER else f"broker {number}"
        yield f"  {name}: named by the decision, and no branch"
    yield f"  {one['reason']}"
    for command in commands:
        yield f"  $ {command}"
    if one["dead_end"]:
        yield f"  beyond any command: {one['dead_end']}"
