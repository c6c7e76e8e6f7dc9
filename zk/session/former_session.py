"""Ends the session of a killed process, so that a restart need not wait for it to time out.

Attaches to the session by its id and password, and closes it: its ephemeral nodes go at once.
"""

import logging

from kazoo.client import KazooClient

from zk.errors import ZooKeeperUnavailable
from zk.session.lease_keeper import BoundedHandler
from zk.session.newcomer import RECONNECT_DELAY_S_MAX, close_client
from zk.session.security import PLAIN, SessionCredentials, ZooKeeperSecurity

TIMEOUT_S = 5.0

_log = logging.getLogger("zk.kazoo")


def end_session(
    connect: str,
    credentials: SessionCredentials,
    timeout_s: float = TIMEOUT_S,
    security: ZooKeeperSecurity = PLAIN,
) -> bool:
    """End a session; its ephemeral nodes are gone on return. Returns False if it had expired or the password is wrong.

    Call only if the session's process is known to be dead: a live one would lose its nodes. Blocks; raises
    ZooKeeperUnavailable if no server answers within about *timeout_s*.
    """
    client = KazooClient(
        connect,
        timeout=timeout_s,
        client_id=(credentials.session_id, credentials.password),
        handler=BoundedHandler(),
        connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_S_MAX},
        logger=_log,
        **security.options(),
    )
    try:
        if not client.start_async().wait(timeout_s):
            raise ZooKeeperUnavailable(f"no ZooKeeper at {connect} within {timeout_s:g} s: is it running?")
        # For an unknown session or a wrong password, the server begins a new session instead.
        identity: tuple[int, bytes] | None = client.client_id
        return identity is not None and identity[0] == credentials.session_id
    finally:
        close_client(client, connect)
