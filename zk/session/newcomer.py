"""A client that has seen no change of ZooKeeper yet: servers refuse others that have seen more than they have."""

import logging
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts

from zk.errors import ZooKeeperError
from zk.session.lease_keeper import BoundedHandler
from zk.session.security import ZooKeeperSecurity

RECONNECT_DELAY_S_MAX = 1.0  # kazoo backs off to a minute: longer than the session it should save
ANSWER_TIMEOUT_S = 2.0  # no answer: ask again later

_log = logging.getLogger("zk.kazoo")


def new_client(
    connect: str, timeout_s: float, handler: BoundedHandler, security: ZooKeeperSecurity
) -> tuple[Any, bool]:
    """Return a client that connects without end once it is started, and whether *connect* has a chroot. Raises
    ZooKeeperError if it is no connect string."""
    try:
        _, chroot = collect_hosts(connect)
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_S_MAX}
        options = {"connection_retry": retry, "logger": _log, **security.options()}
        return KazooClient(connect, timeout=timeout_s, handler=handler, **options), bool(chroot)
    except (AttributeError, ValueError) as error:  # the former of what is no str
        raise ZooKeeperError(
            f"{connect!r} is no ZooKeeper connect string ({error}): give host:port[,host:port...][/chroot]"
        ) from error


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
