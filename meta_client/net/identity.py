"""Names by which this process identifies itself to brokers and ZooKeeper."""

import os
import re
import secrets
import socket
import time

_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9._-]")  # a colon separates the parts of a transaction key (spec 2.1)


def host_name() -> str:
    """Return this machine's name, made valid for keys and node names."""
    return _NOT_IN_A_KEY.sub("_", socket.gethostname()) or "unnamed"


def new_session_id() -> str:
    """Return a new producer session id, unique among all that brokers may remember: containers that start together may
    share host name, process id and millisecond. Its end alone is unique."""
    return f"{host_name()}-{os.getpid()}-{time.time_ns() // 1_000_000}-{secrets.token_hex(8)}"


def default_qualifier() -> str:
    """Return the default branch qualifier: producers of one machine share it."""
    return f"metaq-{host_name()}"
