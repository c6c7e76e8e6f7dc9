"""`metaq brokers`: every master with its slaves: sync state and lag."""

from typing import Final

import click

from meta_client.cli.options import connected, direct_option
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.client import Client
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.operations.broker_rows import (
    NO_WRITES,
    ReplicationReport,
    absence,
    cluster_id,
    parse_report,
    replication_node,
    rows_of,
)
from meta_client.operations.placement import brokers_of
from meta_client.operations.text import tell
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import Stats
from zk.brokers.cluster import BrokerEntry, known_broker_ids

STATS_TIMEOUT_S = 5.0
NOT_SERVED: Final = 1  # exit status: a known master does not take writes, or nobody can tell


@click.command()
@zk_option
@direct_option
@json_option
def brokers(zk: str, as_json: bool) -> None:
    """List brokers: each master that is known, then its slaves, as the master sees them.

    A master's state says what becomes of a write: async, sync, degraded (no slave is waited for), refusing, or full
    (its disk is); or that it is away (ZooKeeper knows it, and it is not up) or silent. in_sync_set names the slaves
    that a write waits for. A slave follows, or the state says why it does not. With --json every row has the
    cluster's id.

    Exit status 1: a master is away, silent, refusing or full, or a node in ZooKeeper can't be read.
    """
    with connected(zk) as client:
        is_direct = client.is_direct  # of ZooKeeper's part nothing is known then
        entries = brokers_of(client)
        rows: list[dict[str, object]] = []
        for broker_id in sorted(entries.keys() | (set() if is_direct else known_broker_ids(client.session))):
            entry = entries.get(broker_id, BrokerEntry())
            node = None if is_direct else replication_node(client, broker_id)
            rows += rows_of(broker_id, entry, _replication_of(client, broker_id, entry), node)
            if entry.master is None:
                tell(f"error: {absence(broker_id, entry, node)}")
        if as_json:
            of = None if is_direct else cluster_id(client)
            rows = [row | {"cluster_id": of} for row in rows]
        print_rows(rows, as_json=as_json, empty="no broker answers" if is_direct else "no broker is registered")
        has_skipped = not is_direct and bool(client.session.malformed.found)
        if has_skipped or any(row["state"] in NO_WRITES for row in rows if row["role"] == "master"):
            click.get_current_context().exit(NOT_SERVED)


def _replication_of(client: Client, broker_id: int, entry: BrokerEntry) -> ReplicationReport | None:
    if entry.master is None:
        return None
    try:
        connection = client.connections.get(entry.master, CONNECT_TIMEOUT_S)
        checked_broker(connection, connection.capabilities(STATS_TIMEOUT_S), broker_id)
        reply = connection.submit(Stats("replication", next_opaque()))
        return parse_report(wait_result(reply, STATS_TIMEOUT_S, "stats replication").text)
    except MetaError as error:
        tell(f"warning: what broker {broker_id} knows of its slaves is missing: {error}")
        return None
