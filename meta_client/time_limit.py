"""How long a broker lets a transaction live, as it is told."""

from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.integers import INT32_MAX


def time_limit(timeout_s: float) -> int | None:
    """Whole seconds, rounded up, so that a short limit does not become none; None for 0, which is none.

    Raises LocalProtocolError for a limit that no broker takes.
    """
    if not 0 <= timeout_s <= INT32_MAX:
        raise LocalProtocolError(f"timeout_s is {timeout_s}: give seconds, 0 for none, {INT32_MAX} at most")
    return -int(-timeout_s // 1) or None
