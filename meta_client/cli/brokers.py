"""`metaq brokers`: every master with its slaves: sync state and lag."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.client import Client
from meta_client.net.calls import wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import Stats
from zk.brokers.cluster import BrokerEntry, read_brokers
from zk.brokers.replication import ReplicationNode, read_replication
from zk.errors import MalformedNode
from zk.tree.broker_url import BrokerUrl

STATS_TIMEOUT_S = 5.0
_COLUMNS = ("broker", "role", "url", "state", "in_sync", "lag_bytes", "lag_s", "epoch")


class ReplicationReport(NamedTuple):
    """Content of a master's `stats replication`: its own line, and those of its slaves, by id."""

    master: Mapping[str, str]
    slaves: Mapping[int, Mapping[str, str]]


def parse_report(text: str) -> ReplicationReport:
    """Parse the answer; ignores unknown items. Accepts any text: a broker without slaves, or without that item, reports
    none."""
    master: Mapping[str, str] = {}
    slaves: dict[int, Mapping[str, str]] = {}
    for line in text.splitlines():
        words = line.split()
        match words:
            case ["master", *pairs]:
                master = dict(zip(pairs[::2], pairs[1::2], strict=False))
            case ["slave", number, *pairs] if number.isascii() and number.isdigit() and len(number) < 20:
                slaves[int(number)] = dict(zip(pairs[::2], pairs[1::2], strict=False))
    return ReplicationReport(master, slaves)


def rows_of(
    broker_id: int, entry: BrokerEntry, report: ReplicationReport | None, node: ReplicationNode | None
) -> Iterator[dict[str, object]]:
    """Return the master's row, then those of all slaves known to it or to ZooKeeper. *report* None: the master is down
    or does not answer."""
    words = report.master if report is not None else {}
    epoch = _number(words.get("epoch")) if words else node.epoch if node is not None else None
    state = words.get("state", "async") if report is not None else "away" if entry.master is None else "silent"
    yield _row(broker_id, "master", entry.master, state, epoch=epoch)
    known = report.slaves if report is not None else {}
    in_zookeeper = set(node.in_sync) if node is not None else set()
    for slave_id in sorted({*known, *entry.slaves, *in_zookeeper}):
        url, told = entry.slaves.get(slave_id), known.get(slave_id)
        if told is None:
            yield _row(broker_id, f"slave {slave_id}", url, "not-connected", in_sync=slave_id in in_zookeeper)
            continue
        lag_ms = _number(told.get("lag_ms"))
        reason = told.get("reason", "-")
        state = "follows" if reason == "-" else reason
        yield _row(
            broker_id,
            f"slave {slave_id}",
            url,
            state,
            in_sync=told.get("in_sync") == "true",
            lag_bytes=_number(told.get("lag_bytes")),
            lag_s=None if lag_ms is None else lag_ms / 1000,
        )


def _row(broker_id: int, role: str, url: BrokerUrl | None, state: str, **more: object) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(_COLUMNS)
    return row | {"broker": broker_id, "role": role, "url": str(url) if url else None, "state": state} | more


def _number(word: str | None) -> int | None:
    return int(word) if word is not None and word.isascii() and word.isdigit() and len(word) < 20 else None


@click.command()
@zk_option
@json_option
def brokers(zk: str, as_json: bool) -> None:
    """List brokers: each master that is known, then its slaves, as the master sees them.

    A master's state says what becomes of a write: async, sync, degraded (no slave is waited for) or refusing; or that
    it is away or silent. A slave follows, or the state says why it does not.
    """
    with connected(zk) as client:
        entries = read_brokers(client.session)
        rows: list[dict[str, object]] = []
        for broker_id, entry in sorted(entries.items()):
            rows += rows_of(broker_id, entry, _ask(client, broker_id, entry), _node(client, broker_id))
    print_rows(_COLUMNS, rows, as_json=as_json, empty="no broker is registered")


def _ask(client: Client, broker_id: int, entry: BrokerEntry) -> ReplicationReport | None:
    if entry.master is None:
        return None
    try:
        reply = client.connections.get(entry.master, CONNECT_TIMEOUT_S).submit(Stats("replication", next_opaque()))
        return parse_report(wait_result(reply, STATS_TIMEOUT_S, "stats replication").text)
    except MetaError as error:
        click.echo(f"warning: what broker {broker_id} knows of its slaves is missing: {error}", err=True)
        return None


def _node(client: Client, broker_id: int) -> ReplicationNode | None:
    try:
        return read_replication(client.session, broker_id).node
    except MalformedNode as error:
        click.echo(f"warning: {error}", err=True)
        return None
