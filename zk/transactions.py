"""Several changes of the tree in one step: all of them, or none (ZooKeeper's multi). Pure."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; refused if it EXISTS, or its parent is MISSING. It is at version 0 then."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Set a node's data; refused if it is MISSING, or not at *version* (-1: any). That rises by one."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a node; refused as Write is."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing; refused as Write is."""

    path: str
    version: int


Operation = Create | Write | Remove | Check
Transaction = tuple[Operation, ...]


class Why(Enum):
    """Why an operation was refused, and with it the whole transaction."""

    EXISTS = "exists"
    MISSING = "missing"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed: *operation* was the first that could not be done."""

    operation: Operation
    why: Why
