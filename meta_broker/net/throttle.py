"""Slows one connection down to the quota of its account.

Bytes received beyond the quota keep the socket unread for a while, so that the peer's system holds it back; requests
beyond it wait in their order. Waiting never lasts longer than WAIT_S_MAX at a time. Only what a peer may repeat without
harm is refused instead: reads that would wait longer, and everything that a rate of 0 forbids.

What ends a branch, tells of one or replicates neither waits nor is refused: a quota must not keep a decided transaction
from its outcome, nor a slave from its master.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from meta_broker.access.accounts import Limit, QuotaAccount
from meta_broker.access.needs import KINDS, Use
from meta_broker.handlers.context import WaitingFetch
from meta_broker.handlers.dispatch import Handled
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Quit, TransactionCommand, TransactionVerb
from meta_client.protocol.status import Status

WAIT_S_MAX: Final = 2.0  # clients wait for 5 s and more; of a longer wait heartbeats would break the connection


_READS: Final = frozenset({Use.READ, Use.WOKEN})


class Throttle:
    """Waits of one connection. Loop thread only."""

    def __init__(
        self, account: QuotaAccount, conn: str, loop: asyncio.AbstractEventLoop, resume: Callable[[], None]
    ) -> None:
        """*resume* is called when a wait is over. *conn* names the connection in the log."""
        self.account = account
        self.is_muted = False  # its socket must not be read
        self._conn = conn
        self._loop = loop
        self._resume = resume
        self._timers: set[asyncio.TimerHandle] = set()
        self._due: float | None = None  # when the next request may be handled; None: it was not looked at yet
        self._since = 0.0  # when it was

    def close(self) -> None:
        """Wait for nothing more, and count for the account no longer."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.account.end_connection()

    @property
    def read_bytes(self) -> int:
        return self.account.read_bytes

    def received(self, count: int) -> None:
        """Count bytes received, and mute the connection while they are paid for."""
        bucket, now = self.account.bytes_in, self._loop.time()
        bucket.charge(count, now)
        wait_s = min(bucket.wait_s(now), WAIT_S_MAX) if bucket.rate else 0.0
        if wait_s > 0 and not self.is_muted:
            self.is_muted = True
            self.account.throttled(Limit.BYTES_IN, wait_s, now, self._conn)
            self._after(wait_s, self._unmute)

    def sent(self, count: int) -> None:
        self.account.bytes_out.charge(count, self._loop.time())

    def judge(self, request: Handled) -> bytes | None:
        """Return None if *request*, the next one, may be handled now; else its refusal; blank: it waits for
        `resume`."""
        if (use := _use_of(request)) is Use.FREE:
            return None
        account, now = self.account, self._loop.time()
        if self._due is None and use is not Use.WOKEN:
            wait_s = account.requests.wait_s(now)
            if wait_s == math.inf or (use is Use.READ and wait_s > WAIT_S_MAX):
                return self._refuse(request, Limit.REQUESTS, now)
            account.requests.charge(1, now)
            self._since, self._due = now, now + min(wait_s, WAIT_S_MAX)
        elif self._due is None:
            self._since = self._due = now
        if use is Use.PUT and account.bytes_in.rate == 0:
            return self._refuse(request, Limit.BYTES_IN, now)
        limit, due = Limit.REQUESTS, self._due
        if use in _READS and (paid_at := now + account.bytes_out.wait_s(now)) > due:
            if paid_at - self._since > WAIT_S_MAX:
                return self._refuse(request, Limit.BYTES_OUT, now)
            limit, due = Limit.BYTES_OUT, paid_at
        if due <= now:
            self._due = None
            return None
        account.throttled(limit, due - now, now, self._conn)
        self._after(due - now, self._resume)
        return b""

    def _refuse(self, request: Handled, limit: Limit, now: float) -> bytes:
        self._due = None
        self.account.refused(limit, now, self._conn)
        asked = request.fetch if isinstance(request, WaitingFetch) else request
        assert not isinstance(asked, Quit)
        return encode_result(Status.TOO_MANY, self.account.why_refused(limit, now).encode(), asked.opaque)

    def _unmute(self) -> None:
        self.is_muted = False
        self._resume()

    def _after(self, wait_s: float, then: Callable[[], None]) -> None:
        def over() -> None:
            self._timers.discard(timer)
            then()

        timer = self._loop.call_later(wait_s, over)
        self._timers.add(timer)


def _use_of(request: Handled) -> Use:
    if isinstance(request, TransactionCommand) and request.verb is TransactionVerb.BEGIN:
        return Use.OTHER
    return Use.WOKEN if isinstance(request, WaitingFetch) else KINDS[type(request)].use
