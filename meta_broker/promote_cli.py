"""`metaq promote`: a stopped slave takes its master's place."""

import contextlib
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from journal.tail import tail_lines
from meta_broker.cli import broker_options, log_to_stderr, serve
from meta_broker.config import BrokerConfig, load
from meta_broker.errors import ConfigError
from meta_broker.replication.judgement import Cluster, Finding, Former, Standing, Weight, judge
from meta_broker.replication.promotion import compare, is_answering, look, promote, read_cluster, slave_in, wait_gone
from zk.replication import Found
from zk.session import ZooKeeperSession

REFUSED: Final = 1  # exit status: not promoted, and nothing was changed
SHOWN_MAX: Final = 20  # branches in doubt; `metaq txn list --dir` has all


@click.command(name="promote")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@broker_options
@click.option(
    "--old",
    "former",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The former master's directory, if it can be read: what is lost is told exactly.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and what would be lost.")
@click.option("--accept-loss", is_flag=True, help="Promote it though something acknowledged may be lost.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--no-start", is_flag=True, help="Only make DIR a master's; `metaq broker` starts it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the text.")
def promote_command(
    directory: Path,
    port: int,
    zk: str | None,
    config_path: Path | None,
    flush: str | None,
    log_level: str,
    former: Path | None,
    dry_run: bool,
    accept_loss: bool,
    yes: bool,
    no_start: bool,
    as_json: bool,
) -> None:
    """Make the slave in DIR, which is stopped, the master of its broker id, and run it like `metaq broker`.

    Tells what the slave has, whether the master is gone, and what may be lost; then asks. A master that is still
    registered and answers stops it; one that does not answer is waited for until its ZooKeeper session is over.
    The former master, once it is back, finds the higher epoch and becomes a slave of this one.

    --zk and --config as the brokers have them: without ZooKeeper you are the one who knows that the master is gone.

    \b
    Exit status: 0  promoted; with --dry-run, nothing acknowledged can be lost
                 1  refused or declined; nothing was changed
                 2  DIR can't be promoted: one line says why

    \b
    metaq promote /var/lib/metaq/0-slave --zk 127.0.0.1:2181 --dry-run
    metaq promote /var/lib/metaq/0-slave --zk 127.0.0.1:2181 --yes
    """
    log_to_stderr(log_level)
    facts = slave_in(directory)
    config = load(
        config_path, data=directory, broker_id=facts.broker_id, port=port, zookeeper=zk, flush=flush
    )  # before anything is claimed: what would keep the broker from starting is said now
    if config.broker.cluster != facts.cluster:
        raise ConfigError(
            f"{directory} is of cluster {facts.cluster!r}, and the configuration of {config.broker.cluster!r}: give "
            f"--config the file that the master has"
        )
    with _session(config) as session:
        if session is not None and not dry_run:
            _wait_for_master(session, config)
        cluster, found = read_cluster(session, facts.broker_id) if session is not None else (None, Found(None, None))
        standing = look(directory)
        compared = compare(former, directory) if former is not None else None
        findings = judge(standing, cluster, compared)
        _print(directory, standing, cluster, compared, findings, as_json=as_json)
        _check(findings, dry_run=dry_run, accept_loss=accept_loss)
        if dry_run:
            return
        if not yes and not click.confirm(f"make {directory} the master of broker {facts.broker_id}?", err=True):
            sys.exit(REFUSED)
        epoch = promote(directory, standing.facts, session, found)
    click.echo(
        f"promoted {directory} broker={facts.broker_id} epoch={epoch} in_doubt={len(standing.in_doubt)}", err=True
    )
    if not no_start:
        serve(config)


@contextlib.contextmanager
def _session(config: BrokerConfig) -> Iterator[ZooKeeperSession | None]:
    section = config.zookeeper_section
    if config.zookeeper is None:
        yield None
        return
    with ZooKeeperSession(
        config.zookeeper,
        section.root,
        section.session_timeout_ms,
        connect_timeout_ms=section.connect_timeout_ms,
    ) as session:
        yield session


def _wait_for_master(session: ZooKeeperSession, config: BrokerConfig) -> None:
    """A master that is registered and does not answer may be dead: give its session the time to end."""
    master = read_cluster(session, config.broker_id)[0].master
    if master is None or is_answering(master):
        return
    wait_s = config.zookeeper_section.session_timeout_ms / 1000
    click.echo(f"{master} does not answer: waiting up to {wait_s:.0f} s for its ZooKeeper session to end", err=True)
    wait_gone(session, config.broker_id, wait_s)


def _check(findings: list[Finding], *, dry_run: bool, accept_loss: bool) -> None:
    """Ends the command with status 1 unless this may go on."""
    stops = [finding for finding in findings if finding.weight is Weight.STOP]
    risks = [finding for finding in findings if finding.weight is Weight.RISK]
    if stops:
        click.echo("not promoted: see what says stop", err=True)
        sys.exit(REFUSED)
    if risks and not accept_loss:
        would = "would need" if dry_run else "not promoted: needs"
        click.echo(f"{would} --accept-loss, for each line that says risk", err=True)
        sys.exit(REFUSED)


def _print(
    directory: Path,
    standing: Standing,
    cluster: Cluster | None,
    former: Former | None,
    findings: list[Finding],
    *,
    as_json: bool,
) -> None:
    if as_json:
        click.echo(json.dumps(_object(directory, standing, cluster, former, findings)))
        return
    facts, now_ms = standing.facts, time.time_ns() // 1_000_000
    click.echo(f"slave {facts.slave_id} of broker {facts.broker_id}, cluster {facts.cluster}: {directory}")
    click.echo(f"  journal     LSN {standing.start} to {standing.end}, epoch {standing.epoch}")
    in_doubt = standing.in_doubt
    click.echo(f"  in doubt    {len(in_doubt)}")
    for key in in_doubt[:SHOWN_MAX]:
        click.echo(f"                {key}")
    if len(in_doubt) > SHOWN_MAX:
        click.echo(f"                and {len(in_doubt) - SHOWN_MAX} more: metaq txn list --dir {directory}")
    if facts.heard_ms:
        at = datetime.datetime.fromtimestamp(facts.heard_ms / 1000).astimezone().isoformat(timespec="seconds")
        ago_s = max(0, (now_ms - facts.heard_ms) // 1000)
        click.echo(
            f"  last heard  {at}, {ago_s} s ago, from {facts.master}: its journal ended at LSN {facts.end}, "
            f"acknowledged up to {facts.fence}"
        )
    if cluster is not None:
        node = cluster.node
        said = "nothing" if node is None else f"epoch {node.epoch}, {node.mode}, in sync: {_ids(node.in_sync)}"
        click.echo(f"  ZooKeeper   {said}; master: {cluster.master or 'none'}; slaves: {_ids(cluster.slaves)}")
    for finding in findings:
        click.echo(f"  {finding.weight:<11} {finding.text}")
    if former is not None and former.lost is not None:
        for line in tail_lines(former.lost):
            click.echo(f"              {line}")


def _ids(slaves: Any) -> str:
    return ", ".join(map(str, sorted(slaves))) or "none"


def _object(
    directory: Path, standing: Standing, cluster: Cluster | None, former: Former | None, findings: list[Finding]
) -> dict[str, object]:
    facts = standing.facts
    node = cluster.node if cluster else None
    return {
        "directory": str(directory),
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
        "lost": msgspec.to_builtins(former.lost) if former and former.lost else None,
        "findings": [{"weight": finding.weight, "text": finding.text} for finding in findings],
        "can_lose": any(finding.weight is not Weight.NOTE for finding in findings),
    }
