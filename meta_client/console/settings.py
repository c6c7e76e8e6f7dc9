"""Settings of one console, as its command line gives them."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from meta_client.client import Client
from meta_client.doctor.sources import AGE_S, command_line


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Settings. *who* goes on record with each change; *databases* may contain passwords: never shown."""

    client: Client
    who: str
    zookeeper: str = ""  # as given on the command line; empty: the default or the environment
    databases: tuple[str, ...] = field(default=(), repr=False)
    logs: tuple[Path, ...] = ()
    dead_letters: tuple[Path, ...] = ()
    age_s: float = AGE_S
    allows_changes: bool = False

    @property
    def doctor(self) -> str:
        """Command line of `metaq txn doctor` that asks the same sides, without secrets."""
        return command_line(self.zookeeper, self.databases, self.logs)

    def command(self, *words: str) -> str:
        """Return the command line of `metaq` with *words*, quoted for a shell."""
        return shlex.join(["metaq", *words, *(["--zk", self.zookeeper] if self.zookeeper else [])])
