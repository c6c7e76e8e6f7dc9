"""Compares the other slaves' copies with the one to be promoted: would another slave be the better master? Pure.

Two copies of a journal agree up to their divergence LSN (`divergence_lsn`). The one with more data beyond it has more
of the same history, unless a later epoch of the master went on without that data. A slave that is not registered cannot
be asked: in mode sync that is the default, and the in-sync set decides.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from journal.records.epoch_history import divergence_lsn
from meta_broker.replication.promotion.promotion_check import (
    CheckFinding,
    ClusterView,
    FormerMaster,
    ReplicaStatus,
    newest_epoch,
    note,
    risk,
)
from meta_broker.replication.replica.copy_report import CopyReport


class NoReport(NamedTuple):
    """A slave could not be asked about its copy."""

    reason: str


class Candidate(NamedTuple):
    """A registered slave, and its report."""

    url: str
    copy: CopyReport | NoReport


class Divergence(NamedTuple):
    """Two copies are the same up to LSN *divergence_lsn*; from there on, how many bytes each has alone."""

    divergence_lsn: int
    here: int
    there: int


def divergence(status: ReplicaStatus, copy: CopyReport) -> Divergence | None:
    """Return where the two copies diverge; None: they share no epoch."""
    at = divergence_lsn(status.epoch_history, status.end, copy.epoch_history, copy.end)
    return None if at is None else Divergence(at, status.end - at, copy.end - at)


def check_candidates(
    status: ReplicaStatus, cluster: ClusterView, candidates: Mapping[int, Candidate], former: FormerMaster | None = None
) -> list[CheckFinding]:
    """Return findings about the other slaves' copies. *former* as in `check_promotion`."""
    found: list[CheckFinding] = []
    ahead: dict[str, CopyReport] = {}  # by URL
    behind: list[int] = []
    for slave_id, (url, copy) in sorted(candidates.items()):
        who = f"slave {slave_id} at {url}"
        if isinstance(copy, NoReport):
            found.append(note(f"{who} can't be asked how far it is: {copy.reason}"))
        elif not copy.is_complete or not copy.epoch_history:
            found.append(note(f"{who} has no whole copy yet: it can't be promoted"))
        elif (between := divergence(status, copy)) is None:
            found.append(risk(f"{who} and this one share no epoch of the journal: which of them has more is unknown"))
        elif not between.there:
            behind.append(slave_id)
        elif copy.epoch_history[-1] < status.epoch_history[-1]:
            text = (
                f"{who} has {between.there} bytes, from LSN {between.divergence_lsn} on, that a later master never had"
            )
            found.append(note(text))
        else:
            ahead[url] = copy
    found += _check_ahead(status, cluster, ahead, former)
    if behind:
        found.append(note(f"slave {', '.join(map(str, behind))} has nothing that is not here"))
    return [*found, *_unregistered(status, cluster, candidates)]


def _check_ahead(
    status: ReplicaStatus, cluster: ClusterView, ahead: Mapping[str, CopyReport], former: FormerMaster | None
) -> Iterator[CheckFinding]:
    """Yield findings about slaves that have more, by URL."""
    most = max(ahead.values(), key=lambda copy: (copy.epoch_history[-1], copy.end), default=None)
    for url, copy in ahead.items():
        between = divergence(status, copy)
        assert between is not None
        text = f"slave {copy.slave_id} at {url} has {between.there} bytes more of this journal, up to LSN {copy.end}"
        if (why := _why_unacknowledged(status, cluster, copy, former)) is not None:
            yield note(f"{text}; it was never acknowledged: {why}")
        elif copy is not most:
            yield risk(f"{text}; another slave has more still")
        else:
            zk = f" --zk {cluster.connect}" if cluster.connect else ""
            command = f"metaq promote {shlex.quote(copy.data)}{zk}"
            text += f"; promote that one, which has most: stop it, and on its machine: {command}"
            yield risk(text)


def _why_unacknowledged(
    status: ReplicaStatus, cluster: ClusterView, copy: CopyReport, former: FormerMaster | None
) -> str | None:
    """Return why the additional data of *copy* was never acknowledged; None: it may have been."""
    node = cluster.node
    if node is not None and node.mode == "sync" and status.facts.slave_id in node.in_sync:
        newest = newest_epoch(status, node)
        if copy.epoch <= newest <= status.followed:
            return "this one is in sync, and has everything that was acknowledged"
    if former is None or former.lost is None or copy.epoch > former.epoch or copy.end > former.lost.end:
        return None
    return "the former master's journal holds nothing there" if former.lost.is_silent else None


def _unregistered(
    status: ReplicaStatus, cluster: ClusterView, candidates: Mapping[int, Candidate]
) -> list[CheckFinding]:
    """Return findings about slaves that ZooKeeper lists in sync and that cannot be asked."""
    node = cluster.node
    away = sorted(set(node.in_sync) - candidates.keys() - {status.facts.slave_id}) if node is not None else []
    if node is None or not away:
        return []
    text = f"slave {', '.join(map(str, away))} can't be asked how far it is: it is not registered"
    if node.mode == "sync":
        text += ", as slaves in mode sync are not by default; it is in sync, so that it has all that was acknowledged"
    return [note(text)]
