"""Bytes of one connection on their way to its socket, whichever thread sends them."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from meta_client.net.tls import ByteStream
from meta_client.protocol.encoder import JOIN_BYTES_MAX
from meta_client.protocol.requests import Body

PATIENCE_S = 0.005  # delay of requests that are not urgent, while other replies are due


class Turn:
    """Mutual exclusion for threads that do not wait for it, which no exception of a signal's handler leaves taken.

    Such an exception may be raised after any call, so also between a lock's acquire() and the `try` behind it. The
    turn is acquired inside the `try`, and released whether or not that got so far; twice, as the exception may come in
    `release`.
    """

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[None, object] = {}

    @property
    def is_taken(self) -> bool:
        return bool(self._holder)

    def try_acquire(self, token: object) -> bool:
        """Return True if *token* holds the turn now, False if another one does."""
        return self._holder.setdefault(None, token) is token

    def release(self, token: object) -> None:
        """Release the turn, if *token* holds it."""
        if self._holder.get(None) is token:
            self._holder.clear()


class SendQueue:
    """Queued pieces, in order, and requests that may be delayed. Bounded by the replies that may be due."""

    def __init__(self, connected: ByteStream) -> None:
        self.sending = Turn()  # its holder sends all that is queued
        self.sent_at = time.monotonic()
        self._socket = connected
        self._pieces: deque[Body] = deque()
        self._delayed: dict[int, bytes] = {}  # by opaque
        self._delayed_until = 0.0

    def add(self, pieces: Iterable[Body]) -> None:
        """Queue *pieces* of requests. One thread at a time."""
        self._pieces.extend(pieces)

    def delay(self, opaque: int, request: bytes) -> None:
        """Keep *request* for `end_delay`. One thread at a time."""
        if not self._delayed:
            self._delayed_until = time.monotonic() + PATIENCE_S
        self._delayed[opaque] = request

    def is_delayed(self, opaque: int) -> bool:
        """Return whether the request of *opaque* is kept back."""
        return opaque in self._delayed

    @property
    def is_delay_over(self) -> bool:
        """True if a request has been kept back for PATIENCE_S."""
        return bool(self._delayed) and time.monotonic() >= self._delayed_until

    def end_delay(self) -> None:
        """Queue the delayed requests. One thread at a time."""
        self._pieces.extend(self._delayed.values())
        self._delayed.clear()

    def send(self, on_failure: Callable[[BaseException], None]) -> None:
        """Send what is queued, or leave it to the thread that is sending: many small requests share one system call.

        The sending thread takes along requests queued meanwhile, and checks again after its turn, so that none stays
        behind. It is soon free: encoding a request takes longer than sending one.

        An error, or an interrupt, which is raised again, may leave part of a command sent, so that nothing can follow
        it: what is queued is dropped, and *on_failure* called before anybody else can send.
        """
        is_mine = True
        while self._pieces and is_mine:
            token = object()
            try:
                try:
                    if is_mine := self.sending.try_acquire(token):
                        self._drain_or_fail(on_failure)
                finally:
                    self.sending.release(token)
            except BaseException:
                self.sending.release(token)
                raise

    def _drain_or_fail(self, on_failure: Callable[[BaseException], None]) -> None:
        try:
            self._drain()
        except BaseException as error:
            self._pieces.clear()
            on_failure(error)
            if not isinstance(error, OSError):
                raise

    def _drain(self) -> None:
        pieces = self._pieces
        while pieces:
            small: list[Body] = []  # sent in one call
            room = JOIN_BYTES_MAX
            while pieces and (room := room - len(pieces[0])) >= 0:
                small.append(pieces.popleft())
            self._socket.sendall(b"".join(small) if small else pieces.popleft())
            self.sent_at = time.monotonic()
