"""How this process calls itself towards brokers and ZooKeeper."""

import itertools
import os
import re
import socket
import time

_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9._-]")  # a colon would break a transaction key's parts (spec 2.1)
_sessions = itertools.count(1)


def host_name() -> str:
    """This machine's name, fit for keys and node names."""
    return _NOT_IN_A_KEY.sub("_", socket.gethostname()) or "unnamed"


def new_session_id() -> str:
    """A producer's session: unique among all that brokers may remember."""
    return f"{host_name()}-{os.getpid()}-{time.time_ns() // 1_000_000}-{next(_sessions)}"


def default_qualifier() -> str:
    """Which producers' branches belong together, unless told otherwise: those of one machine."""
    return f"metaq-{host_name()}"
