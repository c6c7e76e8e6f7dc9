"""Requests that had no answer, in kazoo's terms, and what is said of them."""

from typing import Final

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from zk.errors import ZooKeeperUnavailable

UNANSWERED: Final = (
    ConnectionLoss,
    SessionExpiredError,
    ConnectionClosedError,
    OperationTimeoutError,
    KazooTimeoutError,
)
LARGE_BYTES: Final = 1_000_000  # servers hang up on a request larger than their jute.maxbuffer


def unanswered(connect: str, path: str, error: Exception, bytes_sent: int) -> ZooKeeperUnavailable:
    """Return the error of a request for *path* that had no answer, and sent *bytes_sent* of data."""
    remedy = "is it running? the request is safe to repeat"
    if bytes_sent >= LARGE_BYTES:
        remedy = f"it hangs up on requests above its jute.maxbuffer, 1 MiB by default, and this one had {bytes_sent:,}"
    return ZooKeeperUnavailable(f"ZooKeeper at {connect} did not answer for {path} ({type(error).__name__}): {remedy}")
