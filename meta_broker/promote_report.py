"""What `metaq promote` says before it asks: all that was looked at, in lines for people or as one object. Pure."""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from journal.tail import tail_lines
from meta_broker.replication.copy_report import CopyReport
from meta_broker.replication.judgement import Cluster, Finding, Former, Standing, Weight
from meta_broker.replication.other_slaves import Other, Relation, relation

SHOWN_MAX: Final = 20  # branches in doubt; `metaq txn list --dir` has all


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found, and what that says. *cluster* None: there is no ZooKeeper; *former* None: nobody named the former
    master's directory. *others*: the other slaves that are registered, by id."""

    directory: Path
    standing: Standing
    cluster: Cluster | None
    former: Former | None
    others: Mapping[int, Other]
    findings: Sequence[Finding]


def survey_lines(survey: Survey, now_ms: int) -> Iterator[str]:
    """*survey* for people. *now_ms*: milliseconds since 1970."""
    standing, cluster, former = survey.standing, survey.cluster, survey.former
    facts, in_doubt = standing.facts, standing.in_doubt
    yield f"slave {facts.slave_id} of broker {facts.broker_id}, cluster {facts.cluster}: {survey.directory}"
    yield f"  journal     LSN {standing.start} to {standing.end}, epoch {standing.epoch}"
    yield f"  in doubt    {len(in_doubt)}"
    for key in in_doubt[:SHOWN_MAX]:
        yield f"                {key}"
    if len(in_doubt) > SHOWN_MAX:
        yield f"                and {len(in_doubt) - SHOWN_MAX} more: metaq txn list --dir {survey.directory}"
    if facts.heard_ms:
        at = datetime.datetime.fromtimestamp(facts.heard_ms / 1000).astimezone().isoformat(timespec="seconds")
        ago_s = max(0, (now_ms - facts.heard_ms) // 1000)
        yield (
            f"  last heard  {at}, {ago_s} s ago, from {facts.master}: its journal ended at LSN {facts.end}, "
            f"acknowledged up to {facts.fence}"
        )
    if cluster is not None:
        node = cluster.node
        said = "nothing" if node is None else f"epoch {node.epoch}, {node.mode}, in sync: {_ids(node.in_sync)}"
        yield f"  ZooKeeper   {said}; master: {cluster.master or 'none'}; slaves: {_ids(cluster.slaves)}"
    for slave_id, other in sorted(survey.others.items()):
        yield f"  {f'slave {slave_id}':<11} {other.url}: {_told(other.copy)}"
    for finding in survey.findings:
        yield f"  {finding.weight:<11} {finding.text}"
    if former is not None and former.lost is not None:
        for line in tail_lines(former.lost):
            yield f"              {line}"


def survey_object(survey: Survey) -> dict[str, object]:
    """*survey* for scripts: what `--json` prints."""
    standing, cluster, former = survey.standing, survey.cluster, survey.former
    facts = standing.facts
    node = cluster.node if cluster else None
    return {
        "directory": str(survey.directory),
        "cluster": facts.cluster,
        "broker": facts.broker_id,
        "slave": facts.slave_id,
        "start": standing.start,
        "end": standing.end,
        "epoch": standing.epoch,
        "in_doubt": list(standing.in_doubt),
        "active": standing.active,
        "heard_ms": facts.heard_ms or None,
        "master_end": facts.end,
        "master_fence": facts.fence,
        "master": cluster.master if cluster else None,
        "zookeeper_epoch": node.epoch if node else None,
        "mode": node.mode if node else None,
        "in_sync": list(node.in_sync) if node else None,
        "others": [_other(standing, slave_id, other) for slave_id, other in sorted(survey.others.items())],
        "lost": msgspec.to_builtins(former.lost) if former and former.lost else None,
        "findings": [{"weight": finding.weight, "text": finding.text} for finding in survey.findings],
        "can_lose": any(finding.weight is not Weight.NOTE for finding in survey.findings),
    }


def _told(copy: CopyReport | str) -> str:
    if isinstance(copy, str):
        return f"not known: {copy}"
    return f"LSN {copy.start} to {copy.end}, fsynced up to {copy.flushed}, epoch {copy.epoch}, in {copy.data}"


def _other(standing: Standing, slave_id: int, other: Other) -> dict[str, object]:
    """*parting*: up to there it has the same as this one; *here* and *there*: bytes that one of them has alone."""
    url, copy = other
    if isinstance(copy, str):
        return {"slave": slave_id, "url": url, "error": copy}
    between = relation(standing, copy)
    return {
        "slave": slave_id,
        "url": url,
        "start": copy.start,
        "end": copy.end,
        "flushed": copy.flushed,
        "fence": copy.fence,
        "epoch": copy.epoch,
        "complete": copy.is_complete,
        "data": copy.data,
        **(between._asdict() if between is not None else dict.fromkeys(Relation._fields)),
    }


def _ids(slaves: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(slaves))) or "none"
