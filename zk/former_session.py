"""The session that a killed process left behind: found by its id and password, and ended at once.

ZooKeeper keeps a dead process's ephemeral nodes until its session times out. Who has the session's password can
attach to it and close it instead, and a restart need not wait.
"""

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from zk.credentials import SessionCredentials
from zk.errors import ZooKeeperUnavailable
from zk.link import BoundedHandler
from zk.session import RECONNECT_DELAY_S_MAX

TIMEOUT_S = 5.0

_log = logging.getLogger("zk.kazoo")


def end_session(connect: str, credentials: SessionCredentials, timeout_s: float = TIMEOUT_S) -> bool:
    """End a session; its ephemeral nodes are gone on return. False when it was over already, or not this password's.

    Only for a session whose process is known to be dead: a live one would lose everything it holds. Blocks, at
    most about *timeout_s* when no server answers; raises ZooKeeperUnavailable then.
    """
    client = KazooClient(
        connect,
        timeout=timeout_s,
        client_id=(credentials.session_id, credentials.password),
        handler=BoundedHandler(),
        connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_S_MAX},
        logger=_log,
    )
    try:
        if not client.start_async().wait(timeout_s):
            raise ZooKeeperUnavailable(f"no ZooKeeper at {connect} within {timeout_s:g} s: is it running?")
        # A server that does not know the session, or not with this password, lets the client begin a new one.
        identity: tuple[int, bytes] | None = client.client_id
        return identity is not None and identity[0] == credentials.session_id
    finally:
        _close(client)


def _close(client: KazooClient) -> None:
    """Close the session the client has, whichever that is."""
    try:
        client.stop()
    except KazooException:
        _log.warning("session not closed cleanly")  # a daemon thread still waits for a server; it ends by itself
    else:
        client.close()
