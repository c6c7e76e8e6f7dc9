"""`metaq topics`: lists the cluster's topics, and changes them while brokers run."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import click

from meta_client.cli.options import connected, direct_option
from meta_client.cli.output import confirm, json_option, print_rows, refuse_away, zk_option
from meta_client.cli.security_options import security
from meta_client.cli.targets import known_url, targets, where_options
from meta_client.client import Client
from meta_client.errors import NotSupported
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.connection import Connection
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.operations.broker_rows import number
from meta_client.operations.placement import away_brokers, brokers_of
from meta_client.operations.text import tell
from meta_client.operations.topic_rows import topic_rows
from meta_client.protocol.compression import NO_COMPRESSION
from meta_client.protocol.errors import MetaError, one_line
from meta_client.protocol.requests import Stats, TopicCommand, TopicVerb
from zk.brokers.cluster import BrokerEntry, read_topic_names
from zk.tree.broker_url import BrokerUrl

ANSWER_TIMEOUT_S: Final = 10.0  # an fsync on a busy disk
SOME_REFUSED: Final = 1  # exit status: at least one broker did not do it
SOME_SKIPPED: Final = 1  # exit status: a node in ZooKeeper can't be read
EXTENSION: Final = "topic"

Settings = list[tuple[str, str]]
_KEYS: Final = ("partitions", "publish", "subscribe", "stat", "compression", "index")  # options of create and alter


@click.group(invoke_without_command=True)
@zk_option
@direct_option
@json_option
@click.pass_context
def topics(context: click.Context, zk: str, as_json: bool) -> None:
    """List topics, or decide about one while the brokers run.

    Without a command: which broker offers how many partitions, to producers and to consumers. A broker is written
    B-m, the master of broker id B, or B-sS, its slave S. A topic without a broker was offered once, and nobody who
    does is up. Exit status 1: a node in ZooKeeper can't be read, or a known broker is away, and is named. With
    --broker the broker tells its topics itself, of those without messages the name alone.

    \b
    metaq topics
    metaq topics create orders --partitions 8
    metaq topics close orders 0-3,7 --broker 0
    """
    if context.invoked_subcommand is not None:
        return
    with connected(zk) as client:
        if client.is_direct:
            rows = [
                row for broker_id, entry in brokers_of(client).items() for row in _told_rows(client, broker_id, entry)
            ]
            print_rows(rows, as_json=as_json, empty="the brokers have no topics")
            return
        rows = [row for name in read_topic_names(client.session) for row in topic_rows(client, name)]
        print_rows(rows, as_json=as_json, empty="no topics: start a broker that offers one")
        if client.session.malformed.found:
            context.exit(SOME_SKIPPED)
        refuse_away(away_brokers(client))


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option("--partitions", type=int, metavar="N", help="Partitions on each broker."),
        click.option("--publish/--no-publish", default=None, help="Let producers find the topic."),
        click.option("--subscribe/--no-subscribe", default=None, help="Let consumers find the topic."),
        click.option("--stat/--no-stat", default=None, help="Count the topic in `stats realtime`."),
        click.option(
            "--compression", metavar="CODECS", help="Codecs that producers may use: zstd, lz4, lz4,zstd or none."
        ),
        click.option("--index", type=click.Choice(["attribute", "none"]), help="Index by which `metaq find` is quick."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _words(given: Mapping[str, int | bool | str | None]) -> Settings:
    """Return the settings *given* as the wire writes them."""
    values = [(key, given[key]) for key in _KEYS]
    return [
        (key, str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in values
        if value is not None
    ]


@topics.command()
@click.argument("name")
@_settings
@where_options
def create(name: str, brokers: tuple[str, ...], zk: str, as_json: bool, **settings: int | bool | str | None) -> None:
    """Create topic NAME, with one partition on each broker unless told otherwise.

    A topic that was deleted goes on at the offsets where it ended: consumers with stored offsets lose nothing.
    """
    _send_to_all(TopicVerb.CREATE, name, _words(settings), brokers, zk, as_json)


@topics.command()
@click.argument("name")
@_settings
@where_options
def alter(name: str, brokers: tuple[str, ...], zk: str, as_json: bool, **settings: int | bool | str | None) -> None:
    """Change what is given of topic NAME. Partitions only grow.

    Genuine 1.4 consumers can't read compressed messages, and metaq's need `pip install 'metaq-broker[compression]'`.
    """
    _send_to_all(TopicVerb.ALTER, name, _words(settings), brokers, zk, as_json)


@topics.command()
@click.argument("name")
@click.argument("partitions")
@where_options
def close(name: str, partitions: str, brokers: tuple[str, ...], zk: str, as_json: bool) -> None:
    """Close PARTITIONS (0-3,7 or all) of topic NAME: puts and reads there are refused until they are opened.

    What is prepared there can still commit. Closed partitions stay closed through restarts and reloads.
    """
    _send_to_all(TopicVerb.CLOSE, name, [("partitions", partitions)], brokers, zk, as_json)


@topics.command(name="open")
@click.argument("name")
@click.argument("partitions", default="all")
@where_options
def open_(name: str, partitions: str, brokers: tuple[str, ...], zk: str, as_json: bool) -> None:
    """Open PARTITIONS (all, unless given) of topic NAME again."""
    _send_to_all(TopicVerb.OPEN, name, [("partitions", partitions)], brokers, zk, as_json)


@topics.command()
@click.argument("name")
@where_options
def show(name: str, brokers: tuple[str, ...], zk: str, as_json: bool) -> None:
    """Show what topic NAME is on each broker: settings, compression, closed partitions."""
    _send_to_all(TopicVerb.SHOW, name, [], brokers, zk, as_json)


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
@where_options
def delete(name: str, yes: bool, brokers: tuple[str, ...], zk: str, as_json: bool) -> None:
    """Delete topic NAME and all its messages. There is no way back.

    Nobody may put to it until it is created again. Refused while a transaction has messages for it: `metaq txn list`.
    """
    if not yes:
        where = ", ".join(f"broker {broker}" for broker in brokers) or "every broker"
        confirm(f"delete topic {name} and all its messages on {where}?")
    _send_to_all(TopicVerb.DELETE, name, [], brokers, zk, as_json)


def _send_to_all(
    verb: TopicVerb, topic: str, settings: Settings, brokers: tuple[str, ...], zk: str, as_json: bool
) -> None:
    """Send the command to every selected broker, show the topic's new state there, and name brokers that refused."""
    rows: list[dict[str, object]] = []
    refused = False
    for name, url in targets(brokers, zk):
        command = TopicCommand(verb, topic, tuple(settings), next_opaque())
        try:
            rows.append(_row(name, topic, _send_command(known_url(url), command)))
        except MetaError as error:
            refused = True
            tell(f"error: broker {name}: {one_line(error)}")
    if rows or not refused:
        print_rows(rows, as_json=as_json, empty="no broker is up: start one, or name its URL with --broker")
    if refused or not rows:
        sys.exit(SOME_REFUSED)


def _send_command(url: BrokerUrl, command: TopicCommand) -> str:
    """Return the broker's new state of the topic. Raises MetaError."""
    with contextlib.closing(Connection.open(url, CONNECT_TIMEOUT_S, security())) as connection:
        if EXTENSION not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
            raise NotSupported(f"{url} does not know `{EXTENSION}`: change its configuration file and reload it")
        reply = connection.submit(command)
        return wait_result(reply, ANSWER_TIMEOUT_S, f"{command.verb} {command.topic} at {url}").text


def _row(broker: str, topic: str, text: str) -> dict[str, object]:
    said = dict(word.partition("=")[::2] for word in text.split())
    row: dict[str, object] = {"topic": topic, "broker": broker}
    row["partitions"] = number(said.get("partitions"))
    row |= {key: said.get(key) == "true" for key in ("publish", "subscribe", "stat")}
    row |= {"compression": said.get("compression", NO_COMPRESSION), "index": said.get("index", "none")}
    return row | {"closed": said.get("closed") or None}


def _told_rows(client: Client, broker_id: int, entry: BrokerEntry) -> Iterable[dict[str, object]]:
    """Yield the topics that a broker tells of itself; those without messages have no more than a name."""
    assert entry.master is not None
    connection = client.connections.get(entry.master, CONNECT_TIMEOUT_S)
    checked_broker(connection, connection.capabilities(ANSWER_TIMEOUT_S), broker_id)
    reply = connection.submit(Stats("topics", next_opaque()))
    for line in wait_result(reply, ANSWER_TIMEOUT_S, f"stats topics of {entry.master}").text.splitlines():
        match line.split():
            case [topic, *pairs] if "*" not in topic:
                said = dict(zip(pairs[::2], pairs[1::2], strict=False))
                yield {
                    "topic": topic,
                    "broker": f"{broker_id}-m",
                    "partitions": number(said.get("partitions")),
                    "publish": _flag(said, "accept_publish"),
                    "subscribe": _flag(said, "accept_subscribe"),
                }


def _flag(said: Mapping[str, str], key: str) -> bool | None:
    return said[key] == "true" if key in said else None
