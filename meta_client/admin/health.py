"""Health of a process: whether it is alive, or ready, and why not. Pure.

Stands apart from the rest of the admin port: a process without one need not import prometheus_client, which takes a
tenth of a second.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Health(NamedTuple):
    """Result of a check: it passed if there is no reason why not. *facts* say which process this is."""

    why_not: tuple[str, ...] = ()
    facts: Mapping[str, Any] = {}


HealthCheck = Callable[[], Health]  # called on any thread; returns soon


def encode_health(name: str, health: Health) -> bytes:
    """Return the JSON that answers the check *name*: `{"ready": false, "why_not": [...], ...}`."""
    found = {name: not health.why_not, "why_not": health.why_not, **health.facts}
    return json.dumps(found).encode() + b"\n"
