"""Brokers of a command: every running master, or those named with --broker."""

from collections.abc import Callable

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, zk_option
from meta_client.errors import NotConnected
from meta_client.metadata.direct import parse_brokers
from zk.brokers.cluster import known_broker_ids, read_brokers
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName
from zk.tree.paths import BrokerKey, BrokerNode, PresenceKey


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    option = click.option(
        "--broker",
        "brokers",
        multiple=True,
        metavar="ID|HOST:PORT",
        help="Ask this broker; may be given more than once. HOST:PORT needs no ZooKeeper.  [default: every known "
        "master]",
    )
    return option(zk_option(json_option(command)))


def targets(brokers: tuple[str, ...], zk: str) -> list[tuple[str, BrokerUrl | None]]:
    """Return name and URL of the selected brokers, in order; None for a master that is away, or whose node can't be
    read. Asks ZooKeeper only for ids. Raises InvalidUrl."""
    urls: dict[str, BrokerUrl | None] = {
        text: parse_brokers([text])[0] for text in brokers if not (text.isascii() and text.isdigit())
    }
    if brokers and len(urls) == len(set(brokers)):
        return list(urls.items())
    with connected(zk) as client:
        masters: dict[str, BrokerUrl | None] = {
            str(broker_id): entry.master
            for broker_id, entry in read_brokers(client.session).items()
            if entry.master is not None
        }
        for path in client.session.malformed.found:
            match client.session.paths.maybe_parse(path):
                case BrokerKey(BrokerNode.ADDRESS, broker_id) | PresenceKey(BrokerName(broker_id, None)):
                    masters[str(broker_id)] = None
        if not brokers:
            away = known_broker_ids(client.session) - {int(name) for name in masters}
            return list(masters.items()) + [(str(broker_id), None) for broker_id in sorted(away)]
    for broker in brokers:
        if broker not in urls and broker not in masters:
            known = ", ".join(masters) or "none"
            raise click.BadParameter(f"no master of broker id {broker} is up; {known} is", param_hint="'--broker'")
    return [(broker, urls.get(broker) or masters[broker]) for broker in dict.fromkeys(brokers)]


def known_url(url: BrokerUrl | None) -> BrokerUrl:
    """Return *url* of `targets`. Raises NotConnected without one."""
    if url is None:
        raise NotConnected("it has no address in ZooKeeper that can be read: start it, or name its URL with --broker")
    return url
