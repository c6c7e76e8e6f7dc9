"""Pages about brokers: overview, replication, journal."""

import asyncio
from collections.abc import Iterator
from typing import Final

from meta_client.console.broker_view import Alert, BrokerView, Told, alerts_of
from meta_client.console.brokers import ShownCluster, read_cluster
from meta_client.console.in_doubt import InDoubt, read_in_doubt
from meta_client.console.page import Asked, Past, Values
from meta_client.console.reads import Unknown
from meta_client.doctor.cases import STUCK_S
from meta_client.operations.broker_rows import number

COUNTERS: Final = ("cmd_put", "cmd_get")
LEVELS: Final = ("bad", "unknown", "warn")  # most important first


async def read_overview(asked: Asked) -> Values:
    client, reads = asked.settings.client, asked.reads
    cluster, doubt = await asyncio.gather(read_cluster(client, reads), read_in_doubt(client, reads))
    alerts = sorted(_alerts(cluster, doubt), key=lambda alert: LEVELS.index(alert.level))
    rates = {} if isinstance(cluster, Unknown) else {one.broker_id: _rates(one, asked.past) for one in cluster.brokers}
    return {"cluster": cluster, "doubt": doubt, "alerts": alerts, "rates": rates}


async def read_replication(asked: Asked) -> Values:
    return {"cluster": await read_cluster(asked.settings.client, asked.reads)}


read_journal = read_replication  # the same answers, another half of them


def _alerts(cluster: ShownCluster | Unknown, doubt: InDoubt | Unknown) -> Iterator[Alert]:
    if isinstance(cluster, Unknown):
        yield Alert("unknown", f"brokers: {cluster.why}", "/")
    else:
        if not cluster.brokers:
            yield Alert("warn", "ZooKeeper knows no broker: none ever registered below this address", "/")
        for one in cluster.brokers:
            yield from alerts_of(one)
        for why in cluster.malformed.values():
            yield Alert("bad", f"{why}: see `metaq doctor zookeeper`", "/")
    if isinstance(doubt, Unknown):
        yield Alert("unknown", f"transactions in doubt: {doubt.why}", "/transactions")
        return
    for broker_id, why in doubt.unknown.items():
        yield Alert("unknown", f"transactions of broker {broker_id}: {why}", "/transactions")
    if stuck := sum(one.age_s is not None and one.age_s > STUCK_S for one in doubt.prepared):
        more = " or more" if doubt.left_out else ""
        yield Alert("bad", f"in doubt for more than {STUCK_S / 60:.0f} min: {stuck}{more}", "/transactions")
    if doubt.left_out:
        yield Alert("bad", f"branches in doubt or ended by hand: {doubt.total}", "/transactions")
    if doubt.ledger:
        yield Alert("bad", f"on the ledger, and not forgotten yet: {len(doubt.ledger)}", "/transactions")


def _rates(view: BrokerView, past: Past) -> dict[str, float | None]:
    told = view.master
    if not isinstance(told, Told):
        return {}
    name = f"{view.broker_id} {view.entry.master}"
    found = {key: past.rate(f"{name} {key}", number(told.broker.get(key))) for key in COUNTERS}
    end = None if told.journal is None else number(told.journal.journal.get("end"))
    return found | {"journal": past.rate(f"{name} end", end)}
