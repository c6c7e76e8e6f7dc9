"""Findings about a restoration before it begins: what is lost, and what has more than the back-up. Pure.

A restored directory lacks everything after the back-up, and becomes the master. A slave that was not lost with the
master has more, and is promoted instead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from journal.backup.manifest import Manifest
from journal.records.record import PartitionName
from meta_broker.replication.promotion.promotion_check import CheckFinding, ClusterView, note, risk, stop
from zk.brokers.journal_position import JournalPosition

GROUPS_TOLD = 20


@dataclass(frozen=True, slots=True)
class StoredBeyond:
    """A group's stored offset beyond the end of the back-up's partition."""

    group: str
    name: PartitionName
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """LSN behind the last segment of the archive *name*; *unknown*: why it can't be told, if so."""

    name: str
    end: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class OtherId:
    """Ids of the back-up's cluster and of ZooKeeper's, which differ."""

    backup: str
    zookeeper: str


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """Evidence before a restoration. *cluster*, *position*: None without ZooKeeper, or without a node. *archive*: that
    of the configuration.

    *beyond*: stored offsets beyond the back-up. *has_wildcards*: topics that the configuration does not name may exist.
    """

    manifest: Manifest
    in_doubt: Sequence[str]
    cluster: ClusterView | None
    position: JournalPosition | None
    beyond: Sequence[StoredBeyond]
    has_wildcards: bool
    archive: ArchiveEnd | None = None
    other: OtherId | None = None


def beyond_end(
    stored: Iterable[tuple[str, PartitionName, int]], ends: Mapping[PartitionName, int]
) -> Iterator[StoredBeyond]:
    """Yield the stored offsets (group, partition, offset) beyond *ends*."""
    for group, name, offset in stored:
        if offset > (end := ends.get(name, 0)):
            yield StoredBeyond(group, name, offset, end)


def check_restore(facts: RestoreFacts) -> list[CheckFinding]:
    return [*_cluster(facts), *_archive(facts), *_lost(facts), *_in_doubt(facts), *_groups(facts)]


def _cluster(facts: RestoreFacts) -> Iterator[CheckFinding]:
    cluster, broker_id = facts.cluster, facts.manifest.broker_id
    if cluster is None:
        yield risk(
            f"without ZooKeeper it is unknown whether a master or a slave of broker {broker_id} runs, and none of them "
            f"learns of this: make sure that all are stopped for good"
        )
        return
    if (other := facts.other) is not None:
        yield risk(
            f"the back-up is of the cluster with id {other.backup}, and ZooKeeper at {cluster.connect} of that with "
            f"{other.zookeeper}, whose broker {broker_id} this would become: make sure that it is the right one"
        )
    if cluster.master is not None:
        yield stop(
            f"a master of broker {broker_id} is registered at {cluster.master}: stop it, or wait until its ZooKeeper "
            f"session is over"
        )
    node = cluster.node
    slaves = sorted({*cluster.slaves, *(node.in_sync if node is not None else ())})
    if slaves:
        yield risk(
            f"slave {', '.join(map(str, slaves))} may have more than this back-up: promote it instead; "
            f"after a restoration it gives up what is not in the back-up, into a file"
        )


def _archive(facts: RestoreFacts) -> Iterator[CheckFinding]:
    archive = facts.archive
    if archive is None:
        return
    if archive.unknown:
        yield risk(
            f"{archive.unknown}: if it has segments beyond this back-up, it takes none of the restored broker's, whose "
            f"disk then fills"
        )
    elif archive.end > facts.manifest.end:
        yield stop(
            f"{archive.name} has segments of the lost journal up to LSN {archive.end}, beyond this back-up, and would "
            f"take none of the restored broker's: name a new place in [retention] archive, and keep the old one: "
            f"`metaq audit` and Spark read it"
        )


def _lost(facts: RestoreFacts) -> Iterator[CheckFinding]:
    manifest, position = facts.manifest, facts.position
    if position is None:
        yield note("what was written after the back-up is lost; how much that is, ZooKeeper does not say")
    elif position.order < (manifest.epoch, manifest.incarnation, manifest.end):
        yield note(
            f"what was written after the back-up is lost; ZooKeeper knows of nothing: it last read LSN {position.end}"
        )
    elif position.epoch == manifest.epoch:
        yield note(
            f"what was written after the back-up is lost: {position.end - manifest.end} bytes of the journal or more, "
            f"up to LSN {position.end}, last in {position.directory or 'an unknown directory'} on {position.host}"
        )
    else:
        yield note(
            f"what was written after the back-up is lost: the journal had reached epoch {position.epoch}, LSN "
            f"{position.end}, and the back-up is of epoch {manifest.epoch}, LSN {manifest.end}"
        )


def _in_doubt(facts: RestoreFacts) -> Iterator[CheckFinding]:
    if facts.in_doubt:
        yield note(
            f"{len(facts.in_doubt)} branches were prepared when the back-up was taken, and may have ended since, with "
            f"their decisions deleted: each goes on the ledger as a hazard; compare them with the database before you "
            f"end them by `metaq txn`"
        )
    yield note(
        "transactions committed after the back-up have rows in their databases and no messages: see metaq reconcile"
    )


def _groups(facts: RestoreFacts) -> Iterator[CheckFinding]:
    for one in facts.beyond[:GROUPS_TOLD]:
        yield note(
            f"group {one.group} has consumed {one.name} up to {one.offset}, and the back-up ends at {one.end}: it goes "
            f"on with the first new message"
        )
    if len(facts.beyond) > GROUPS_TOLD:
        yield note(f"so have groups in {len(facts.beyond) - GROUPS_TOLD} partitions more")
    if facts.has_wildcards:
        yield note(
            "topics of a pattern that were first used after the back-up are unknown: they begin at offset 0 again, "
            "unless a group has stored an offset in ZooKeeper"
        )
