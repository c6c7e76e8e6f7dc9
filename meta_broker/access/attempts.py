"""Failed logins: beyond some, further ones are refused for a while. The caller has the clock.

They count by address. A user that has logged in from an address is counted there by itself: strangers that guess from
behind the same address do not keep it out, and its own logins do not forgive guesses at others.
"""

from collections import OrderedDict
from typing import Final

FAILURES_MAX: Final = 10  # in a row
RECOVERY_S: Final = 3.0  # for each failure to be forgotten
REMEMBERED_MAX: Final = 10_000  # the latest

_Key = tuple[str, str]  # address and user; no user: all that have not logged in from there


class FailedLogins:
    """Failures of each address. Bounded. Loop thread only."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[_Key, float] = OrderedDict()  # when the last failure is forgotten
        self._known: OrderedDict[_Key, None] = OrderedDict()  # logged in

    def _key(self, address: str, user: str) -> _Key:
        return (address, user) if (address, user) in self._known else (address, "")

    def wait_s(self, address: str, user: str, now: float) -> float:
        """Return for how long logins of *user* from *address* are refused; 0: not at all."""
        left_s = self._full_at.get(self._key(address, user), now) - now
        return max(0.0, left_s - (FAILURES_MAX - 1) * RECOVERY_S)

    def failed(self, address: str, user: str, now: float) -> None:
        key = self._key(address, user)
        self._full_at[key] = max(self._full_at.get(key, now), now) + RECOVERY_S
        _bound(self._full_at, key)

    def succeeded(self, address: str, user: str) -> None:
        """Know *user* at *address* from now on, and forget its own failures there."""
        self._known[address, user] = None
        _bound(self._known, (address, user))
        self._full_at.pop((address, user), None)


def _bound(table: OrderedDict[_Key, float] | OrderedDict[_Key, None], latest: _Key) -> None:
    table.move_to_end(latest)
    if len(table) > REMEMBERED_MAX:
        table.popitem(last=False)
