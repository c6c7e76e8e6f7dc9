"""Brokers of a command: every running master, or those named with --broker."""

from collections.abc import Callable

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, zk_option
from zk.brokers.cluster import read_brokers
from zk.tree.broker_url import BrokerUrl


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the broker options."""
    option = click.option(
        "--broker",
        "brokers",
        multiple=True,
        metavar="ID|URL",
        help="Only this broker; may be given more than once. Every master that is up, otherwise.",
    )
    return option(zk_option(json_option(command)))


def targets(brokers: tuple[str, ...], zk: str) -> list[tuple[str, BrokerUrl]]:
    """Return name and URL of the selected brokers, in order. Asks ZooKeeper only for ids. Raises InvalidUrl."""
    urls = {text: BrokerUrl.parse(text) for text in brokers if not (text.isascii() and text.isdigit())}
    if brokers and len(urls) == len(set(brokers)):
        return list(urls.items())
    with connected(zk) as client:
        masters = {
            str(broker_id): entry.master
            for broker_id, entry in read_brokers(client.session).items()
            if entry.master is not None
        }
    if not brokers:
        return list(masters.items())
    for broker in brokers:
        if broker not in urls and broker not in masters:
            known = ", ".join(masters) or "none"
            raise click.BadParameter(f"no master of broker id {broker} is up; {known} is", param_hint="'--broker'")
    return [(broker, urls.get(broker) or masters[broker]) for broker in dict.fromkeys(brokers)]
