"""Requests in kazoo's terms: transactions, their results, and what had no answer."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from zk.errors import RefusedNode, ZooKeeperUnavailable
from zk.tree.paths import check_path
from zk.tree.transactions import Check, Create, NodeTransaction, RefusalReason, Remove, TransactionRefused, Write

_REASONS: Final = (
    (NodeExistsError, RefusalReason.EXISTS),
    (NotEmptyError, RefusalReason.EXISTS),
    (NoNodeError, RefusalReason.MISSING),
    (BadVersionError, RefusalReason.VERSION),
)


def send_transaction(client: Any, operations: NodeTransaction) -> Any:
    """Send *operations* through a KazooClient, and return its pending result. Does not wait."""
    request = client.transaction()
    for operation in operations:
        check_path(operation.path)
        match operation:
            case Create(path, data, ephemeral):
                request.create(path, data, ephemeral=ephemeral)
            case Write(path, data, version):
                request.set_data(path, data, version)
            case Remove(path, version):
                request.delete(path, version)
            case Check(path, version):
                request.check(path, version)
            case _:
                assert_never(operation)
    return request.commit_async()


def bytes_of(operations: NodeTransaction) -> int:
    """Return how many bytes of paths and data *operations* send."""
    return sum(len(it.path) + len(it.data if isinstance(it, Create | Write) else b"") for it in operations)


def refusal_of(operations: NodeTransaction, results: Sequence[object]) -> TransactionRefused | RefusedNode | None:
    """Return the refusal in kazoo's results, if any: one per operation, all exceptions if one is refused; RefusedNode
    if access rules deny it."""
    for operation, result in zip(operations, results, strict=True):
        if (why := next((why for kind, why in _REASONS if isinstance(result, kind)), None)) is not None:
            return TransactionRefused(operation, why)
        if isinstance(result, KazooException) and not isinstance(result, RolledBackError):
            return RefusedNode(operation.path, result)
    return None


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
