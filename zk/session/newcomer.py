"""A client that has seen no change of ZooKeeper yet: servers refuse others that have seen more than they have."""

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from zk.session.lease_keeper import BoundedHandler
from zk.session.security import ZooKeeperSecurity

ANSWER_TIMEOUT_S = 2.0  # no answer: ask again later

_log = logging.getLogger("zk.kazoo")


def finds_less(connect: str, security: ZooKeeperSecurity, seen: int) -> bool:
    """Return True if a server of *connect* answers, and its last change is before number *seen*. Asks in a session of
    its own; blocks, some seconds at most. Any thread."""
    client = KazooClient(connect, timeout=ANSWER_TIMEOUT_S, handler=BoundedHandler(), logger=_log, **security.options())
    try:
        if not client.start_async().wait(ANSWER_TIMEOUT_S):
            return False
        client.exists_async("/").get(timeout=ANSWER_TIMEOUT_S)  # the answer names the last change
        last: int = client.last_zxid
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        close_client(client, connect)
    if last < seen:
        _log.error(
            "ZooKeeper's last change is %#x, and this client has seen %#x: it has lost data, or is another one; a "
            "new session begins connect=%s",
            *(last, seen, connect),
        )
    return last < seen


def close_client(client: KazooClient, connect: str) -> None:
    """End the session of *client*, made with the connect string *connect*, and the client."""
    try:
        client.stop()
    except KazooException:
        # kazoo's thread still waits for a server; it is a daemon and ends by itself.
        _log.warning("session not closed cleanly connect=%s", connect)
    else:
        client.close()
