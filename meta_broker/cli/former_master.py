"""Shared by the commands that give a broker id a new master: ZooKeeper's session, a dead master's end, the consent."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from meta_broker.config.broker_config import BrokerConfig
from meta_broker.replication.promotion.promotion import is_answering, read_cluster, wait_unregistered
from meta_broker.replication.promotion.promotion_check import CheckFinding, Severity
from meta_client.operations.text import tell
from zk.session.session import ZooKeeperSession

REFUSED: Final = 1  # exit status: nothing was changed


@contextlib.contextmanager
def configured_session(config: BrokerConfig) -> Iterator[ZooKeeperSession | None]:
    """Open a session with the broker's settings; yields None if it has no ZooKeeper."""
    section = config.zookeeper_section
    if config.zookeeper is None:
        yield None
        return
    with ZooKeeperSession(
        config.zookeeper,
        section.root,
        section.session_timeout_ms,
        connect_timeout_ms=section.connect_timeout_ms,
        security=section.security(),
    ) as session:
        yield session


def wait_for_dead_master(session: ZooKeeperSession, config: BrokerConfig) -> None:
    """Wait for the session of a registered master that does not answer to end."""
    master = read_cluster(session, config.broker_id)[0].master
    if master is None or is_answering(master, config.security):
        return
    wait_s = config.zookeeper_section.session_timeout_ms / 1000
    tell(f"{master} does not answer: waiting up to {wait_s:.0f} s for its ZooKeeper session to end")
    wait_unregistered(session, config.broker_id, wait_s)


def check_consent(findings: Sequence[CheckFinding], refused: str, *, dry_run: bool, accept_loss: bool) -> None:
    """Exit with status REFUSED if the findings forbid what is to be done. *refused* says that it was not."""
    severities = {finding.severity for finding in findings}
    if Severity.STOP in severities:
        tell(f"{refused}: see what says stop")
        sys.exit(REFUSED)
    if Severity.RISK in severities and not accept_loss:
        tell(f"{'would need' if dry_run else f'{refused}: needs'} --accept-loss, for each line that says risk")
        sys.exit(REFUSED)
