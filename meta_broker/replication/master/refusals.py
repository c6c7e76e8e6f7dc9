"""Log of refused links: a slave that is refused comes back each second, and the reason is logged once."""

import logging
from typing import Final

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 1000  # remembered: any peer may send any number


class Refusals:
    """Reasons for which links were refused, by slave. Loop thread only."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}  # the last reason of each slave

    def log(self, peer: str, slave: str, reason: str) -> None:
        """Log that the link of *slave* at *peer* was refused, unless the one before was for the same reason."""
        if self._logged.get(slave) != reason:
            if len(self._logged) >= SLAVES_MAX:
                self._logged.clear()
            self._logged[slave] = reason
            log.warning("link refused peer=%s slave=%s reason=%s", peer, slave, reason)

    def clear(self, slave: str) -> None:
        """Drop the reason, as the slave was accepted: the next refusal is logged."""
        self._logged.pop(slave, None)
