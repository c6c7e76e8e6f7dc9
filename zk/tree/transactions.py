"""Atomic changes of several nodes (ZooKeeper's multi). Pure."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node, at version 0; refused if it EXISTS, or its parent is MISSING."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Set a node's data, which adds one to its version; refused if it is MISSING, or not at *version* (-1: any)."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a node; refused as Write is, and if a child of it EXISTS."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing; refused as Write is."""

    path: str
    version: int


Operation = Create | Write | Remove | Check
NodeTransaction = tuple[Operation, ...]


class RefusalReason(Enum):
    """Reason for the refusal of an operation, and with it of the transaction."""

    EXISTS = "exists"
    MISSING = "missing"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class TransactionRefused:
    """A transaction that changed nothing: *operation* was the first that could not be done."""

    operation: Operation
    reason: RefusalReason
