"""`metaq promote`: a stopped slave takes its master's place."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from journal.transaction_store import wall_clock_ms
from meta_broker.cli import broker_options, log_to_stderr, serve
from meta_broker.config import BrokerConfig, load
from meta_broker.errors import ConfigError
from meta_broker.promote_report import Survey, survey_lines, survey_object
from meta_broker.replication.judgement import Finding, Weight, judge
from meta_broker.replication.other_slaves import Other, judge_others
from meta_broker.replication.promotion import (
    ask_slaves,
    compare,
    is_answering,
    look,
    promote,
    read_cluster,
    slave_in,
    wait_gone,
)
from meta_client.cli.confirming import confirm
from meta_client.cli.journal_text import printable
from zk.replication import Found
from zk.session import ZooKeeperSession

REFUSED: Final = 1  # exit status: not promoted, and nothing was changed


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

    Tells what the slave has, whether the master is gone, whether another slave has more, and what may be lost; then
    asks. A master that is still registered and answers stops it; one that does not answer is waited for until its
    ZooKeeper session is over. The former master, once it is back, finds the higher epoch and becomes a slave of this
    one.

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
        findings, others = judge(standing, cluster, compared), dict[int, Other]()
        if cluster is not None:
            others = ask_slaves(cluster, facts)
            findings += judge_others(standing, cluster, others, compared)
        survey = Survey(directory, standing, cluster, compared, others, findings)
        _print(survey, as_json=as_json)
        _check(survey.findings, dry_run=dry_run, accept_loss=accept_loss)
        if dry_run:
            return
        if not yes:
            confirm(f"make {directory} the master of broker {facts.broker_id}?")
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


def _print(survey: Survey, *, as_json: bool) -> None:
    lines = [json.dumps(survey_object(survey))] if as_json else survey_lines(survey, wall_clock_ms())
    for line in lines:
        click.echo(printable(line))  # operators' reasons and other slaves' texts may hold anything


def _check(findings: Sequence[Finding], *, dry_run: bool, accept_loss: bool) -> None:
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
