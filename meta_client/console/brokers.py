"""Asks ZooKeeper and every broker for what overview, replication and journal show."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from meta_client.client import Client
from meta_client.console.broker_view import ITEMS, BrokerView, Told, parse_told
from meta_client.console.reads import LIMIT_S, Reads, Unknown
from meta_client.metadata.topology import no_master
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.operations.broker_rows import replication_node
from meta_client.operations.placement import away_brokers
from meta_client.protocol.requests import Stats
from zk.brokers.cluster import BrokerEntry, known_broker_ids, read_brokers
from zk.tree.broker_url import BrokerUrl

BROKERS_MAX: Final = 200  # shown


@dataclass(frozen=True, slots=True)
class ShownCluster:
    """Every broker id, and the nodes of ZooKeeper that can't be read, with the reason."""

    brokers: tuple[BrokerView, ...]
    malformed: Mapping[str, str]
    hidden: int = 0  # broker ids beyond BROKERS_MAX


async def read_cluster(client: Client, reads: Reads) -> ShownCluster | Unknown:
    """Read the cluster; each process that does not answer in time is Unknown in it."""
    found = await reads.call("brokers", lambda: _registered(client))
    if isinstance(found, Unknown):
        return found
    places = {
        (view.broker_id, url)
        for view in found.brokers
        for url in (view.entry.master, *view.entry.slaves.values())
        if url
    }
    said = await reads.each(("stats",), places, lambda place: _stats_of(client, *place))
    told: dict[int, dict[BrokerUrl, Told | Unknown]] = {view.broker_id: {} for view in found.brokers}
    for (broker_id, url), answer in said.items():
        told[broker_id][url] = answer
    return replace(found, brokers=tuple(view.answered(told[view.broker_id]) for view in found.brokers))


async def read_away(client: Client, reads: Reads, silent: Mapping[int, str] = MappingProxyType({})) -> dict[str, str]:
    """Return by id why partitions of brokers are unknown: of those that are *silent*, and of those that are away, which
    ZooKeeper does not list; by `*` if nobody knows which these are."""
    away = await reads.call(("away",), lambda: away_brokers(client))
    told = {"*": away.why} if isinstance(away, Unknown) else {str(one): str(no_master(one)) for one in away}
    return told | {str(broker_id): why for broker_id, why in silent.items()}


def _registered(client: Client) -> ShownCluster:
    entries = read_brokers(client.session)
    ids = sorted(entries.keys() | known_broker_ids(client.session))
    views = [
        BrokerView(broker_id, entries.get(broker_id, BrokerEntry()), replication_node(client, broker_id))
        for broker_id in ids[:BROKERS_MAX]
    ]
    malformed = {path: str(error) for path, error in client.session.malformed.found.items()}
    return ShownCluster(tuple(views), malformed, max(len(ids) - BROKERS_MAX, 0))


def _stats_of(client: Client, broker_id: int, url: BrokerUrl) -> Told:
    deadline = Deadline(LIMIT_S)
    connection = client.connections.get(url, LIMIT_S, patient=False)
    checked_broker(connection, connection.capabilities(deadline.remaining_s()), broker_id)
    replies = [connection.submit(Stats(item, next_opaque())) for item in ITEMS]
    texts = [wait_result(reply, max(deadline.remaining_s(), 0.0), f"stats at {url}").text for reply in replies]
    return parse_told(dict(zip(ITEMS, texts, strict=True)))
