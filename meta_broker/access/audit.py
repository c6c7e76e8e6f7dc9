"""The audit log: one line for each action of an operator, each decision about a branch by hand and each login, with
what came of it.

The logger `metaq.audit`, which logs nothing else, and whose lines are never left out. Names of facts are this
program's; values may be anybody's, and the log quotes them.
Stands alone: logins, requests and commands write it.
"""

import logging
from typing import Final

from meta_client.logs.handler import AUDIT

NOBODY: Final = "-"  # in place of a principal: none was authenticated
VALUE_CHARACTERS_MAX: Final = 300
_log = logging.getLogger(AUDIT)
_log.setLevel(logging.INFO)  # whatever the level of the rest


def audit(action: str, principal: str | None, conn: str, outcome: str, **facts: object) -> None:
    """Write one line. *conn*: address and port. Facts that are None are left out."""
    told = {"action": action, "outcome": outcome, "principal": principal or NOBODY, "conn": conn}
    told |= {name: str(value)[:VALUE_CHARACTERS_MAX] for name, value in facts.items() if value is not None}
    _log.info(" ".join(["audit", *(f"{name}=%s" for name in told)]), *told.values())
