"""Rows of `metaq brokers`: masters with their slaves, sync state and lag."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from meta_client.client import Client
from zk.brokers.cluster import BrokerEntry
from zk.brokers.cluster_id import read_cluster_id
from zk.brokers.replication import ReplicationNode, read_replication
from zk.errors import MalformedNode, RefusedNode
from zk.tree.broker_url import BrokerUrl

COLUMNS: Final = ("broker", "role", "url", "state", "in_sync", "lag_bytes", "lag_s", "epoch", "in_sync_set")
NO_WRITES: Final = frozenset({"away", "silent", "refusing", "full"})  # states of a master that takes none


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
    epoch = number(words.get("epoch")) if words else node.epoch if node is not None else None
    state = words.get("state", "async") if report is not None else "away" if entry.master is None else "silent"
    in_sync = words.get("in_sync") if words else ",".join(map(str, node.in_sync)) if node is not None else None
    if words.get("mode", "async" if node is None else node.mode) == "async":
        in_sync = None  # nobody is waited for
    elif in_sync in ("", "-"):
        in_sync = "none"
    yield _row(broker_id, "master", entry.master, state, epoch=epoch, in_sync_set=in_sync)
    known = report.slaves if report is not None else {}
    in_zookeeper = set(node.in_sync) if node is not None else set()
    for slave_id in sorted({*known, *entry.slaves, *in_zookeeper}):
        url, told = entry.slaves.get(slave_id), known.get(slave_id)
        if told is None:
            yield _row(broker_id, f"slave {slave_id}", url, "not-connected", in_sync=slave_id in in_zookeeper)
            continue
        lag_ms = number(told.get("lag_ms"))
        reason = told.get("reason", "-")
        state = "follows" if reason == "-" else reason
        yield _row(
            broker_id,
            f"slave {slave_id}",
            url,
            state,
            in_sync=told.get("in_sync") == "true",
            lag_bytes=number(told.get("lag_bytes")),
            lag_s=None if lag_ms is None else lag_ms / 1000,
        )


def _row(broker_id: int, role: str, url: BrokerUrl | None, state: str, **more: object) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(COLUMNS)
    return row | {"broker": broker_id, "role": role, "url": str(url) if url else None, "state": state} | more


def number(word: str | None) -> int | None:
    """Return *word*, a broker's, as a number; None for anything else."""
    return int(word) if word is not None and word.isascii() and word.isdigit() and len(word) < 20 else None


def absence(broker_id: int, entry: BrokerEntry, node: ReplicationNode | None) -> str:
    """Describe a master that is gone, and what to do."""
    last = f", last at {node.master}" if node is not None and node.master else ""
    text = f"broker {broker_id} has no master{last}: start it"
    candidates = sorted({*entry.slaves, *(node.in_sync if node is not None else ())})
    if candidates:
        text += f", or promote a slave ({', '.join(map(str, candidates))})"
    return f"{text}; of one that is gone for good, delete the nodes with its id in ZooKeeper"


def replication_node(client: Client, broker_id: int) -> ReplicationNode | None:
    """Read the replication node; None without a readable one."""
    try:
        return read_replication(client.session, broker_id).node
    except (MalformedNode, RefusedNode) as error:
        client.session.malformed.skip(error)
        return None


def cluster_id(client: Client) -> str | None:
    """Read the cluster's id; None without a readable one."""
    try:
        return read_cluster_id(client.session)
    except (MalformedNode, RefusedNode) as error:
        client.session.malformed.skip(error)
        return None
