"""Failed logins by address: beyond some, further ones are refused unread for a while. The caller has the clock."""

from collections import OrderedDict
from typing import Final

FAILURES_MAX: Final = 10  # in a row, of one address
RECOVERY_S: Final = 3.0  # for each failure to be forgotten
ADDRESSES_MAX: Final = 10_000  # remembered, the latest


class FailedLogins:
    """Failures of each address. Bounded. Loop thread only."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when the last failure is forgotten

    def wait_s(self, address: str, now: float) -> float:
        """Return for how long logins of *address* are refused; 0: not at all."""
        left_s = self._full_at.get(address, now) - now
        return max(0.0, left_s - (FAILURES_MAX - 1) * RECOVERY_S)

    def failed(self, address: str, now: float) -> None:
        """Record a failure."""
        self._full_at[address] = max(self._full_at.get(address, now), now) + RECOVERY_S
        self._full_at.move_to_end(address)
        if len(self._full_at) > ADDRESSES_MAX:
            self._full_at.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the failures of *address*."""
        self._full_at.pop(address, None)
