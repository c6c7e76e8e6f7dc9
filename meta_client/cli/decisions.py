"""Decision of a coordinator's log about a branch in doubt; only the log that named the branch counts."""

from pathlib import Path

from journal.records.xid import Xid
from meta_client.coordinator.decision_log import read_decisions
from meta_client.coordinator.names import branch
from meta_client.protocol.errors import MetaError


class NoVerdict(MetaError):
    """The log does not cover this branch: the absence of a decision there means nothing."""


def is_decided(directory: Path, xid: Xid) -> bool:
    """True if the log in *directory* holds the decision to commit branch *xid*. False: roll it back.

    Raises NoVerdict, and the errors of read_decisions.
    """
    said = read_decisions(directory)
    if not said.name.owns(xid):
        raise NoVerdict(
            f"{directory} is the log of coordinator {said.name.label}, which did not begin {xid}, so it does not tell "
            f"how to end it: name the log whose coordinator did"
        )
    if branch(xid, b"") in said.unfinished:
        return True
    if said.is_held:
        raise NoVerdict(
            f"the coordinator of {directory} runs, and has not decided about {xid} yet: it ends the branch itself; "
            f"stop it before you do"
        )
    return False
