"""Accounts of quotas: the use of each principal, and of each address without one. One table; the caller has the clock.

An account exists while it has a limit, and something open or unpaid: strangers with many addresses cost no memory.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from meta_broker.access.quota import UNLIMITED, Quota
from meta_client.logs.audit import NOBODY

log = logging.getLogger(__name__)

BURST_S: Final = 1.0  # so many seconds of a rate may be used at once, after a time without use
DEBT_S_MAX: Final = 30.0  # what is owed beyond that is forgiven
LOG_S: Final = 60.0  # the same limit of the same account is logged once in this time
IDLE_MAX: Final = 10_000  # accounts kept for their debts alone
READ_S: Final = 0.1  # of its rate, an account's connection receives at once
READ_BYTES_MIN: Final = 512
READ_BYTES_MAX: Final = 64 * 1024


class Limit(StrEnum):
    """A limit of a quota; the word in logs and metrics."""

    CONNECTIONS = "connections"
    BRANCHES = "branches"
    REQUESTS = "requests"
    BYTES_IN = "bytes_in"
    BYTES_OUT = "bytes_out"


class Bucket:
    """A rate, and the time at which all that was used so far is paid for."""

    __slots__ = ("_paid_at", "rate")

    def __init__(self, rate: float | None) -> None:
        """*rate*: units a second; None: no limit."""
        self.rate = rate
        self._paid_at = -math.inf

    def charge(self, amount: float, now: float) -> None:
        """Charge *amount*, whether what was used before is paid for or not."""
        if self.rate:
            paid_at = max(self._paid_at, now - BURST_S) + amount / self.rate
            self._paid_at = min(paid_at, now + DEBT_S_MAX)

    def wait_s(self, now: float) -> float:
        """Return the seconds until more may be used; infinite if nothing may."""
        if self.rate == 0:
            return math.inf
        return 0.0 if self.rate is None else max(0.0, self._paid_at - now)


class QuotaCost(NamedTuple):
    """Cost of a limit to its user since the start."""

    throttled_s: float  # of all its connections together
    refused: int


class QuotaAccount:
    """Use of one quota, by a principal or an address. Loop thread only."""

    def __init__(
        self,
        key: tuple[str, str],
        totals: dict[tuple[str, Limit], QuotaCost],
        closed: Callable[["QuotaAccount"], None],
    ) -> None:
        """*closed* is called when its last connection or branch has ended."""
        self.key = key
        self.quota = UNLIMITED
        self.connections = self.branches = 0
        self.requests, self.bytes_in, self.bytes_out = Bucket(None), Bucket(None), Bucket(None)
        self._totals = totals
        self._closed = closed
        self._logged: dict[Limit, float] = {}  # when
        self.throttled_until = 0.0

    @property
    def label(self) -> str:
        """Name of the principal, as metrics have it. Addresses share one: strangers must not add time series."""
        kind, name = self.key
        return name if kind == "principal" else NOBODY

    def limit(self, quota: Quota) -> None:
        """Use *quota* from now on. What is owed stays owed."""
        self.quota = quota
        self.requests.rate, self.bytes_in.rate = quota.requests_per_second, quota.bytes_in_per_second
        self.bytes_out.rate = quota.bytes_out_per_second

    def why_no_connection(self) -> str:
        """Return why no further connection may be opened; blank: it may."""
        return self._why_full("connections", self.connections, self.quota.connections_max, "close some")

    def why_no_branch(self) -> str:
        """Return why no further branch may begin; blank: it may."""
        return self._why_full("branches", self.branches, self.quota.branches_max, "finish some")

    def _why_full(self, what: str, used: int, used_max: int | None, remedy: str) -> str:
        if used_max is None or used < used_max:
            return ""
        return f"{used} {what} of {' '.join(self.key)} are open, {what}_max of its quota is {used_max}: {remedy}"

    def why_refused(self, limit: Limit, now: float) -> str:
        bucket: Bucket = getattr(self, limit.value)
        wait_s = bucket.wait_s(now)
        when = "it allows nothing" if wait_s == math.inf else f"try again in {math.ceil(wait_s)} s"
        return f"quota of {' '.join(self.key)}: {bucket.rate:g} {limit} a second: {when}"

    def end_connection(self) -> None:
        self.connections -= 1
        self._closed(self)

    def begin_branch(self) -> Callable[[], None]:
        """Count a branch, until what this returns is called."""
        self.branches += 1
        return self._end_branch

    def _end_branch(self) -> None:
        self.branches -= 1
        self._closed(self)

    @property
    def read_bytes(self) -> int:
        """Bytes that one connection may receive at once: so little that each gets its part every second."""
        if not (rate := self.bytes_in.rate):
            return READ_BYTES_MAX
        part = min(rate * READ_S, rate / max(self.connections, 1))
        return int(max(READ_BYTES_MIN, min(part, READ_BYTES_MAX)))

    def throttled(self, limit: Limit, wait_s: float, now: float, conn: str) -> None:
        self.throttled_until = max(self.throttled_until, now + wait_s)
        self._count(limit, wait_s, 0, now, conn)

    def refused(self, limit: Limit, now: float, conn: str) -> None:
        self._count(limit, 0.0, 1, now, conn)

    def _count(self, limit: Limit, wait_s: float, refused: int, now: float, conn: str) -> None:
        before = self._totals.get((self.label, limit), QuotaCost(0.0, 0))
        self._totals[self.label, limit] = QuotaCost(before.throttled_s + wait_s, before.refused + refused)
        if now - self._logged.get(limit, -math.inf) >= LOG_S:
            self._logged[limit] = now
            verb = "refused" if refused else "throttled"
            log.warning("quota reached, %s %s=%s limit=%s conn=%s", verb, *self.key, limit, conn)

    @property
    def is_open(self) -> bool:
        """True if it has connections, or branches that are not over."""
        return bool(self.connections or self.branches)


class QuotaAccounts:
    """All accounts. Loop thread only, apart from `totals`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_key: dict[tuple[str, str], QuotaAccount] = {}
        self._idle: OrderedDict[tuple[str, str], float] = OrderedDict()  # since when they have nothing open
        self._totals: dict[tuple[str, Limit], QuotaCost] = {}

    def of_principal(self, name: str, quota: Quota) -> QuotaAccount | None:
        """Return the account of a principal whose quota is *quota*; None: it has no limit."""
        return self._find(("principal", name), quota)

    def of_address(self, network: str, quota: Quota) -> QuotaAccount | None:
        """Return the account of peers at *network* (`addresses.network_of`); None: they have no limit."""
        return self._find(("address", network), quota)

    def _find(self, key: tuple[str, str], quota: Quota) -> QuotaAccount | None:
        if quota == UNLIMITED:
            return None
        if (account := self._by_key.get(key)) is None:
            account = self._by_key[key] = QuotaAccount(key, self._totals, self.closed)
        if account.quota != quota:
            account.limit(quota)
        return account

    def closed(self, account: QuotaAccount) -> None:
        """Drop *account* once it has nothing open and owes nothing any more."""
        if not account.is_open:
            self._idle[account.key] = self._clock()
            self._idle.move_to_end(account.key)
            if len(self._idle) > IDLE_MAX:
                self._drop(next(iter(self._idle)))

    def sweep(self) -> None:
        """Drop what owes nothing any more. Call it now and then."""
        paid_since = self._clock() - DEBT_S_MAX - BURST_S
        while self._idle and next(iter(self._idle.values())) <= paid_since:
            self._drop(next(iter(self._idle)))

    def _drop(self, key: tuple[str, str]) -> None:
        del self._idle[key]
        if key in self._by_key and not self._by_key[key].is_open:
            del self._by_key[key]

    def totals(self) -> list[tuple[str, Limit, QuotaCost]]:
        """Return what each limit has cost, by principal. Any thread."""
        return [(label, limit, totals) for (label, limit), totals in list(self._totals.items())]

    def __iter__(self) -> Iterator[QuotaAccount]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)
