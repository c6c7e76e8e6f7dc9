"""Tells an older copy of a broker's directory from the newest: by the journal's last writer, and its end. Pure.

ZooKeeper keeps how far the journal was (`zk/brokers/journal_position.py`). A master whose directory ends before that
would give out offsets again. In mode sync with slaves in sync those have what is missing, and confirm or restore it;
otherwise the start is refused.
"""

from pathlib import Path
from typing import Final

from journal.state.recovery import Recovered
from meta_broker.errors import BrokerError
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

WRITE_S: Final = 2.0  # between two writes of the position while it moves: what a copy may lack unnoticed


class StaleCopy(BrokerError):
    """The directory ends before what was acknowledged. Start the newest directory, or restore this one with `metaq
    restore`. Nothing was changed."""


def is_behind(recovered: Recovered, position: JournalPosition | None) -> bool:
    """Return True if the journal ends before *position*. A higher epoch is a promotion's or a restoration's, which
    checked that."""
    if position is None:
        return False
    state = recovered.state
    return (state.epoch, state.incarnation, recovered.end) < position.order


def is_kept_by_slaves(mode: str, node: ReplicationNode | None) -> bool:
    """Return True if slaves in sync have all that was acknowledged, and this master will ask them."""
    return mode == "sync" and node is not None and node.mode == "sync" and bool(node.in_sync)


def stale_copy(
    directory: Path, broker_id: int, recovered: Recovered, position: JournalPosition, node: str, master: str
) -> StaleCopy:
    """Return the error that refuses the start. *node*: path of the journal node; *master*: URL of a registered one,
    blank without."""
    if master:
        return StaleCopy(
            f"broker {broker_id} is registered at {master}, and {directory} does not hold its journal: stop that "
            f"broker, or give this one another id"
        )
    state = recovered.state
    here = f"epoch {state.epoch}, open {state.incarnation}, LSN {recovered.end}" if state.epoch else "no journal"
    where = f"; it was in {position.directory} on {position.host}" if position.directory else ""
    return StaleCopy(
        f"{directory} holds {here}, and broker {broker_id} had epoch {position.epoch}, open {position.incarnation}, "
        f"LSN {position.end}{where}: this is an older copy, or another directory, and would give offsets out again; "
        f"start the newest directory, promote a slave, or restore a back-up with `metaq restore`; if nothing newer "
        f"exists and no consumer has a stored offset, delete {node} in ZooKeeper"
    )
