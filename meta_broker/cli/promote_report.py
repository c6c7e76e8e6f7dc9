"""Report of `metaq promote` before it asks: all findings, as text or as one JSON object. Pure."""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from journal.repair.tail import tail_lines
from meta_broker.replication.promotion.candidates import Candidate, Divergence, NoReport, divergence
from meta_broker.replication.promotion.promotion_check import (
    CheckFinding,
    ClusterView,
    FormerMaster,
    ReplicaStatus,
    Severity,
)
from meta_broker.replication.replica.copy_report import CopyReport

SHOWN_MAX: Final = 20  # branches in doubt; `metaq txn list --dir` shows all


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """Findings and their evidence. *cluster* None: there is no ZooKeeper; *former* None: no former master's
    directory given.

    *candidates*: the other registered slaves, by id.
    """

    directory: Path
    status: ReplicaStatus
    cluster: ClusterView | None
    former: FormerMaster | None
    candidates: Mapping[int, Candidate]
    findings: Sequence[CheckFinding]


def report_lines(report: PromotionReport, now_ms: int) -> Iterator[str]:
    """Yield the report as text. *now_ms*: milliseconds since 1970."""
    status, cluster, former = report.status, report.cluster, report.former
    facts, in_doubt = status.facts, status.in_doubt
    yield f"slave {facts.slave_id} of broker {facts.broker_id}, cluster {facts.cluster}: {report.directory}"
    yield f"  journal     LSN {status.start} to {status.end}, epoch {status.epoch}"
    yield f"  in doubt    {len(in_doubt)}"
    for key in in_doubt[:SHOWN_MAX]:
        yield f"                {key}"
    if len(in_doubt) > SHOWN_MAX:
        yield f"                and {len(in_doubt) - SHOWN_MAX} more: metaq txn list --dir {report.directory}"
    if facts.heard_ms:
        at = datetime.datetime.fromtimestamp(facts.heard_ms / 1000).astimezone().isoformat(timespec="seconds")
        ago_s = max(0, (now_ms - facts.heard_ms) // 1000)
        yield (
            f"  last heard  {at}, {ago_s} s ago, from {facts.master}: its journal ended at LSN {facts.end}, "
            f"acknowledged up to {facts.high_watermark}"
        )
    if cluster is not None:
        node = cluster.node
        said = "nothing" if node is None else f"epoch {node.epoch}, {node.mode}, in sync: {_ids(node.in_sync)}"
        yield f"  ZooKeeper   {said}; master: {cluster.master or 'none'}; slaves: {_ids(cluster.slaves)}"
    for slave_id, other in sorted(report.candidates.items()):
        yield f"  {f'slave {slave_id}':<11} {other.url}: {_copy_text(other.copy)}"
    for finding in report.findings:
        yield f"  {finding.severity:<11} {finding.text}"
    if former is not None and former.lost is not None:
        for line in tail_lines(former.lost):
            yield f"              {line}"


def report_object(report: PromotionReport) -> dict[str, object]:
    status, cluster, former = report.status, report.cluster, report.former
    facts = status.facts
    node = cluster.node if cluster else None
    return {
        "directory": str(report.directory),
        "cluster": facts.cluster,
        "broker": facts.broker_id,
        "slave": facts.slave_id,
        "start": status.start,
        "end": status.end,
        "epoch": status.epoch,
        "in_doubt": list(status.in_doubt),
        "active": status.active,
        "heard_ms": facts.heard_ms or None,
        "master_end": facts.end,
        "master_high_watermark": facts.high_watermark,
        "master": cluster.master if cluster else None,
        "zookeeper_epoch": node.epoch if node else None,
        "mode": node.mode if node else None,
        "in_sync": list(node.in_sync) if node else None,
        "others": [_other(status, slave_id, other) for slave_id, other in sorted(report.candidates.items())],
        "lost": msgspec.to_builtins(former.lost) if former and former.lost else None,
        "findings": [{"weight": finding.severity, "text": finding.text} for finding in report.findings],
        "can_lose": any(finding.severity is not Severity.NOTE for finding in report.findings),
    }


def _copy_text(copy: CopyReport | NoReport) -> str:
    if isinstance(copy, NoReport):
        return f"not known: {copy.reason}"
    return f"LSN {copy.start} to {copy.end}, fsynced up to {copy.flushed}, epoch {copy.epoch}, in {copy.data}"


def _other(status: ReplicaStatus, slave_id: int, other: Candidate) -> dict[str, object]:
    """Describe another slave. *divergence_lsn*: end of the common part; *here* and *there*: bytes that only one of them
    has.
    """
    url, copy = other
    if isinstance(copy, NoReport):
        return {"slave": slave_id, "url": url, "error": copy.reason}
    between = divergence(status, copy)
    return {
        "slave": slave_id,
        "url": url,
        "start": copy.start,
        "end": copy.end,
        "flushed": copy.flushed,
        "high_watermark": copy.high_watermark,
        "epoch": copy.epoch,
        "complete": copy.is_complete,
        "data": copy.data,
        **(between._asdict() if between is not None else dict.fromkeys(Divergence._fields)),
    }


def _ids(slaves: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(slaves))) or "none"
