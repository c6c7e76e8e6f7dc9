"""A client that has seen no change of ZooKeeper yet: servers refuse others that have seen more than they have."""

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from zk.session.lease_keeper import BoundedHandler
from zk.session.security import ZooKeeperSecurity

ANSWER_TIMEOUT_S = 2.0  # no answer: ask again later

_log = logging.getLogger("zk.kazoo")


class Newcomer:
    """Asks the servers of *connect*, each time in a session of its own. Any thread."""

    def __init__(self, connect: str, security: ZooKeeperSecurity) -> None:
        self._connect = connect
        self._security = security

    def finds_less(self, seen: int) -> bool:
        """Return True if a server answers, and its last change is before number *seen*. Blocks, some seconds at
        most."""
        client = KazooClient(
            self._connect,
            timeout=ANSWER_TIMEOUT_S,
            handler=BoundedHandler(),
            logger=_log,
            **self._security.options(),
        )
        try:
            if not client.start_async().wait(ANSWER_TIMEOUT_S):
                return False
            client.exists_async("/").get(timeout=ANSWER_TIMEOUT_S)  # the answer names the last change
            last: int = client.last_zxid
        except (KazooException, KazooTimeoutError):
            return False
        finally:
            close_client(client)
        if last < seen:
            _log.error(
                "ZooKeeper's last change is %#x, and this client has seen %#x: it has lost data, or is another one; a "
                "new session begins connect=%s",
                *(last, seen, self._connect),
            )
        return last < seen


def close_client(client: KazooClient) -> None:
    """End the client's session, and the client."""
    try:
        client.stop()
    except KazooException:
        _log.warning("session not closed cleanly")  # a daemon thread still waits for a server; it ends by itself
    else:
        client.close()
