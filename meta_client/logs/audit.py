"""The audit log: one line for each action of an operator, each decision about a branch by hand and each login, with
what came of it.

A broker's is the logger `metaq.audit`, which logs nothing else, and whose lines are never left out. What is done to a
directory while no broker runs on it has its lines in that directory. Names of facts are this program's; values may be
anybody's, and the log quotes them.
"""

import logging
import os
import pwd
from pathlib import Path
from typing import Final

from journal.wal.file_move import sync_directory
from meta_client.logs.formats import TextFormatter
from meta_client.logs.handler import AUDIT

log = logging.getLogger(__name__)

NOBODY: Final = "-"  # in place of a principal: none was authenticated
OFFLINE_FILE: Final = "audit.log"
VALUE_CHARACTERS_MAX: Final = 300
_log = logging.getLogger(AUDIT)
_log.setLevel(logging.INFO)  # whatever the level of the rest


def audit(action: str, principal: str | None, conn: str, outcome: str, **facts: object) -> None:
    """Write one line. *conn*: address and port. Facts that are None are left out."""
    _log.handle(_line(action, principal, conn, outcome, facts))


def audit_offline(directory: Path, action: str, outcome: str = "done", **facts: object) -> None:
    """Append one line to the file `audit.log` of *directory*, with the user of this process as principal; durable on
    return. If that fails, say so on stderr: what was done is done."""
    line = _line(action, user_of_this_process(), "local", outcome, facts)
    _log.handle(line)  # of `metaq promote`, which goes on as the broker
    try:
        fd = os.open(directory / OFFLINE_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(TextFormatter().format(line) + "\n")
            file.flush()
            os.fsync(fd)
        sync_directory(directory)  # of the first line
    except OSError as error:
        logging.getLogger(__name__).error(
            "not in the audit log action=%s directory=%s error=%s", action, directory, error
        )


def user_of_this_process() -> str:
    """Return the name of the system's user, or its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        return str(os.getuid())


def _line(action: str, principal: str | None, conn: str, outcome: str, facts: dict[str, object]) -> logging.LogRecord:
    told = {"action": action, "outcome": outcome, "principal": principal or NOBODY, "conn": conn}
    told |= {name: str(value)[:VALUE_CHARACTERS_MAX] for name, value in facts.items() if value is not None}
    text = " ".join(["audit", *(f"{name}=%s" for name in told)])
    return _log.makeRecord(AUDIT, logging.INFO, __file__, 0, text, tuple(told.values()), None)
