"""Pages about topics: the list, one topic's partitions, its messages, one message."""

from datetime import datetime
from typing import Any, Final

from meta_client.client import Client
from meta_client.console.brokers import read_away
from meta_client.console.messages import READ_S, SEARCH_S, read_one, read_page, search
from meta_client.console.page import Asked, InvalidQuery, NotHere, Rows, Values
from meta_client.console.payload import FORMS, preview, shown
from meta_client.console.reads import Reads, Unknown
from meta_client.console.rendering import path
from meta_client.consumer.position import EARLIEST, Position
from meta_client.operations.positions import Positions, Range
from meta_client.operations.searching import Wanted
from meta_client.operations.topic_rows import topic_rows
from meta_client.protocol.integers import INT64_MAX, INT64_MIN
from zk.brokers.cluster import read_topic, read_topic_names, subscribable_partitions
from zk.tree.nodes import Partition, TopicPartition
from zk.tree.paths import TopicKind, is_name

TEXT_MAX: Final = 2048  # characters of a key


async def read_topics(asked: Asked) -> Values:
    client = asked.settings.client
    names = await asked.reads.call("topics", lambda: read_topic_names(client.session))
    if isinstance(names, Unknown):
        return {"topics": names}
    rows = Rows.of(names, asked.start)
    listed = await asked.reads.call(
        ("topic rows", rows.rows), lambda: {name: list(topic_rows(client, name)) for name in rows.rows}, READ_S
    )
    away = await read_away(client, asked.reads)
    return {
        "topics": listed,
        "unknown": away,
        "rows": rows,
        "page_at": lambda start: path("topics", start=start or None),
    }


async def read_topic_page(asked: Asked) -> Values:
    topic = _topic(asked)
    client = asked.settings.client
    partitions = await _partitions(asked, topic)
    values: Values = {"topic": topic, "partitions": partitions}
    if isinstance(partitions, Unknown):
        return values
    rows = Rows.of(partitions, asked.start)
    ranges, unknown = await read_ranges(client, asked.reads, [(topic, one) for one in rows.rows])
    values |= {"rows": rows, "ranges": ranges, "unknown": await read_away(client, asked.reads, unknown)}
    values["page_at"] = lambda start: path("topics", topic, start=start or None)
    values["offered"] = await asked.reads.call(("topic rows", topic), lambda: list(topic_rows(client, topic)))
    return values


async def read_messages(asked: Asked) -> Values:
    """Read a page of messages, if the query says which."""
    topic, query = _topic(asked), asked.query
    partitions = await _partitions(asked, topic)
    given = {name: query.get(name, "").strip() for name in ("partition", "at", "key", "id")}
    values: Values = {"topic": topic, "partitions": partitions, "given": given, "result": None, "hits": []}
    values |= {"failures": [], "preview": preview}
    if isinstance(partitions, Unknown):
        return values
    chosen = None
    if given["partition"]:
        chosen = Partition.maybe_parse(given["partition"])
        if chosen not in partitions:
            raise InvalidQuery(f"{topic} has no partition {given['partition'][:40]!r}")
    if given["key"] or given["id"]:
        await _search(asked, topic, [chosen] if chosen is not None else partitions, values)
        return values
    if chosen is None and partitions:
        chosen = partitions[0]
    if chosen is not None:
        given["partition"] = str(chosen)
        at = _place(given["at"])
        client = asked.settings.client
        values["result"] = await asked.reads.call(
            ("messages", topic, chosen, at), lambda: read_page(client, topic, chosen, at), READ_S
        )
        if not isinstance(values["result"], Unknown):
            values["hits"] = values["result"].hits
    return values


async def read_message(asked: Asked) -> Values:
    topic = _topic(asked)
    partition, text = Partition.maybe_parse(asked.path["partition"]), asked.path["offset"]
    if partition is None or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise NotHere("a message is named by its topic, partition and offset")
    form = asked.query.get("as", "auto")
    if form not in FORMS:
        raise InvalidQuery(f"{form[:40]!r} is none of {', '.join(FORMS)}")
    client, offset = asked.settings.client, int(text)
    hit = await asked.reads.call(
        ("message", topic, partition, offset), lambda: read_one(client, topic, partition, offset), READ_S
    )
    values: Values = {"topic": topic, "partition": partition, "offset": offset, "hit": hit, "forms": FORMS}
    if hit is None:
        raise NotHere(f"no message of {topic}/{partition} begins at {offset}")
    return values if isinstance(hit, Unknown) else values | {"payload": shown(hit.message.payload, form)}


async def read_ranges(
    client: Client, reads: Reads, keys: list[TopicPartition]
) -> tuple[dict[TopicPartition, Range], dict[int, str]]:
    """Ask the brokers for partitions' ranges, each broker by itself; also return the silent ones, with the reason."""
    by_broker: dict[int, list[TopicPartition]] = {}
    for key in keys:
        by_broker.setdefault(key[1].broker_id, []).append(key)
    answers, unknown = await reads.each_broker(
        ("ranges", tuple(keys)), by_broker, lambda broker_id, tell: Positions(client, tell).ranges(by_broker[broker_id])
    )
    return {key: held for answer in answers for key, held in answer.items()}, unknown


async def _partitions(asked: Asked, topic: str) -> list[Partition] | Unknown:
    session = asked.settings.client.session
    return await asked.reads.call(
        ("partitions", topic), lambda: sorted(subscribable_partitions(read_topic(session, TopicKind.SUB, topic)))
    )


async def _search(asked: Asked, topic: str, partitions: list[Partition], values: Values) -> None:
    given, client = values["given"], asked.settings.client
    if len(given["key"]) > TEXT_MAX:
        raise InvalidQuery(f"a key has {TEXT_MAX} characters at most")
    wanted = Wanted(key=given["key"] or None, message_id=_id(given["id"]), since_ms=_since_ms(given["at"]))
    answers = await asked.reads.each(
        ("search", topic, wanted), partitions, lambda one: search(client, topic, one, wanted), SEARCH_S
    )
    for partition, answer in answers.items():
        if isinstance(answer, Unknown):
            values["failures"].append((partition, answer.why))
        else:
            values["hits"] += answer
    if not given["partition"]:
        values["failures"] += [(f"{one}-*", why) for one, why in (await read_away(client, asked.reads)).items()]
    values["result"] = "found"


def _topic(asked: Asked) -> str:
    topic = asked.path["topic"]
    if not is_name(topic):
        raise NotHere("a topic's name has no such form")
    return topic


def _place(text: str) -> Position:
    match text:
        case "":
            return EARLIEST
        case "earliest" | "latest":
            return text
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return _moment(text)


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidQuery(
            f"{text[:40]!r} is neither earliest, latest, an offset, nor a time like 2010-12-05T10:00"
        ) from error


def _since_ms(text: str) -> int | None:
    return None if text in ("", "earliest") else int(_moment(text).timestamp() * 1000)


def _id(text: str) -> int | None:
    if not text:
        return None
    try:
        number: Any = int(text) if len(text) < 24 else None
    except ValueError:
        number = None
    if number is None or not INT64_MIN <= number <= INT64_MAX:
        raise InvalidQuery(f"{text[:40]!r} is no message id")
    return int(number)
