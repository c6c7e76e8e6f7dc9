"""Would another slave be the better master? What the others' copies say about a promotion. Pure.

Two copies of a journal agree up to where they part (`journal.lives.parting`); who has more from there on has more of
the same history, unless a later life of the master went on without that. Whoever is not registered can't be asked: in
mode sync that is the rule, and the in-sync set tells what is needed.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from journal.lives import parting
from meta_broker.replication.copy_report import CopyReport
from meta_broker.replication.judgement import Cluster, Finding, Former, Standing, Weight, newest_epoch


class Other(NamedTuple):
    """A registered slave. *copy*: what it told, or in words why it told nothing."""

    url: str
    copy: CopyReport | str


class Relation(NamedTuple):
    """Up to LSN *parting* two copies are the same; from there on, how many bytes each has alone."""

    parting: int
    here: int
    there: int


def relation(standing: Standing, copy: CopyReport) -> Relation | None:
    """None: they share no life, and nothing is known."""
    at = parting(standing.lives, standing.end, copy.lives, copy.end)
    return None if at is None else Relation(at, standing.end - at, copy.end - at)


def judge_others(
    standing: Standing, cluster: Cluster, others: Mapping[int, Other], former: Former | None = None
) -> list[Finding]:
    """What the other slaves' copies say. *former* as `judge` has it."""
    found: list[Finding] = []
    ahead: dict[str, CopyReport] = {}  # by URL
    behind: list[int] = []
    for slave_id, (url, copy) in sorted(others.items()):
        who = f"slave {slave_id} at {url}"
        if isinstance(copy, str):
            found.append(Finding(Weight.NOTE, f"{who} can't be asked how far it is: {copy}"))
        elif not copy.is_complete or not copy.lives:
            found.append(Finding(Weight.NOTE, f"{who} has no whole copy yet: it can't be promoted"))
        elif (between := relation(standing, copy)) is None:
            text = f"{who} and this one share no life of the journal: nothing tells which of them has more"
            found.append(Finding(Weight.RISK, text))
        elif not between.there:
            behind.append(slave_id)
        elif copy.lives[-1] < standing.lives[-1]:
            text = f"{who} has {between.there} bytes, from LSN {between.parting} on, that a later master never had"
            found.append(Finding(Weight.NOTE, text))
        else:
            ahead[url] = copy
    found += _judge_ahead(standing, cluster, ahead, former)
    if behind:
        found.append(Finding(Weight.NOTE, f"slave {', '.join(map(str, behind))} has nothing that is not here"))
    return [*found, *_unregistered(standing, cluster, others)]


def _judge_ahead(
    standing: Standing, cluster: Cluster, ahead: Mapping[str, CopyReport], former: Former | None
) -> Iterator[Finding]:
    """Those who have more, by URL."""
    most = max(ahead.values(), key=lambda copy: (copy.lives[-1], copy.end), default=None)
    for url, copy in ahead.items():
        between = relation(standing, copy)
        assert between is not None
        text = f"slave {copy.slave_id} at {url} has {between.there} bytes more of this journal, up to LSN {copy.end}"
        if (why := _why_unacknowledged(standing, cluster, copy, former)) is not None:
            yield Finding(Weight.NOTE, f"{text}; nobody was told of that: {why}")
        elif copy is not most:
            yield Finding(Weight.RISK, f"{text}; another slave has more still")
        else:
            zk = f" --zk {cluster.connect}" if cluster.connect else ""
            command = f"metaq promote {shlex.quote(copy.data)}{zk}"
            text += f"; promote that one, which has most: stop it, and on its machine: {command}"
            yield Finding(Weight.RISK, text)


def _why_unacknowledged(standing: Standing, cluster: Cluster, copy: CopyReport, former: Former | None) -> str | None:
    """Why what *copy* has more was never acknowledged; None: it may have been."""
    node = cluster.node
    if node is not None and node.mode == "sync" and standing.facts.slave_id in node.in_sync:
        newest = newest_epoch(standing, node)
        if copy.epoch <= newest <= standing.followed:
            return "this one is in sync, and has everything that was acknowledged"
    if former is None or former.lost is None or copy.epoch > former.epoch or copy.end > former.lost.end:
        return None
    return "the former master's journal holds nothing there" if former.lost.is_silent else None


def _unregistered(standing: Standing, cluster: Cluster, others: Mapping[int, Other]) -> list[Finding]:
    """Those that ZooKeeper names in sync, and nobody can ask."""
    node = cluster.node
    away = sorted(set(node.in_sync) - others.keys() - {standing.facts.slave_id}) if node is not None else []
    if node is None or not away:
        return []
    text = f"slave {', '.join(map(str, away))} can't be asked how far it is: it is not registered"
    if node.mode == "sync":
        text += ", as slaves in mode sync are not by default; it is in sync, so that it has all that was acknowledged"
    return [Finding(Weight.NOTE, text)]
