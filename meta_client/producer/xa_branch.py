"""An XA branch that a producer works on, and its state."""

from dataclasses import dataclass, field
from enum import Enum

from journal.records.xid import Xid
from meta_client.producer.branch_pipeline import BranchPipeline
from meta_client.producer.xa_verbs import RemoteBranch


class BranchPhase(Enum):
    """State of a producer's branch."""

    ACTIVE = "active"
    ROLLBACK_ONLY = "to be rolled back"
    PREPARED = "prepared"


@dataclass(slots=True)
class ProducerBranch:
    """The branch that a producer is working on."""

    at: RemoteBranch
    state: BranchPhase = BranchPhase.ACTIVE
    pipeline: BranchPipeline | None = field(default=None, repr=False)  # None: recovered, not begun here
    reason: str = ""  # of ROLLBACK_ONLY

    @property
    def xid(self) -> Xid:
        """The branch's xid, shared with the database."""
        return self.at.key.xid

    @property
    def broker_id(self) -> int:
        """Id of its broker."""
        return self.at.broker_id

    def __str__(self) -> str:
        return f"{self.state.value}, because {self.reason}" if self.reason else self.state.value
