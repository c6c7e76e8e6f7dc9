"""States of a log writer: one table, walked by one function. Pure.

Two threads may write, one at a time: the event loop at the end of an iteration, and the writer thread. The state says
which. Entering a state in which the thread has work wakes it, so nothing queued waits for a wake-up that never comes.
"""

from collections.abc import Mapping
from typing import Final

from journal.records.state_table import IdentityEnum


class WriterState(IdentityEnum):
    """State of a log writer."""

    IDLE = "idle"  # nobody writes, the thread sleeps
    INLINE = "inline"  # the loop writes a batch, the thread sleeps
    INLINE_CALLED = "inline, thread called"  # the loop writes a batch, and the thread goes on
    THREAD = "thread"  # the thread writes until nothing is left
    INLINE_CLOSING = "inline, closing"  # the loop writes a batch, the thread the rest, and ends
    CLOSING = "closing"  # the thread writes the rest, and ends
    LAST = "last batch"  # the thread has taken the last batch
    FAILED = "failed"  # a write or fsync failed: nobody writes any more


class WriterEvent(IdentityEnum):
    """Event that may change the state of a log writer."""

    CALL = "call"  # what is queued, or the fsync requested, is for the thread
    BEGIN_INLINE = "begin inline"
    END_INLINE = "end inline"
    TAKE = "take"  # the thread takes a batch
    TAKE_LAST = "take last"  # and nothing is left, nor will be
    REST = "rest"  # the thread finds nothing to do
    CLOSE = "close"
    FAIL = "fail"


S = WriterState
E = WriterEvent

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.IDLE: {
        E.CALL: S.THREAD,
        E.BEGIN_INLINE: S.INLINE,
        E.TAKE: S.THREAD,
        E.REST: S.IDLE,
        E.CLOSE: S.CLOSING,
        E.FAIL: S.FAILED,
    },
    S.INLINE: {
        E.CALL: S.INLINE_CALLED,
        E.END_INLINE: S.IDLE,
        E.REST: S.INLINE,
        E.CLOSE: S.INLINE_CLOSING,
        E.FAIL: S.FAILED,
    },
    S.INLINE_CALLED: {
        E.CALL: S.INLINE_CALLED,
        E.END_INLINE: S.THREAD,
        E.REST: S.INLINE_CALLED,
        E.CLOSE: S.INLINE_CLOSING,
        E.FAIL: S.FAILED,
    },
    S.THREAD: {
        E.CALL: S.THREAD,
        E.TAKE: S.THREAD,
        E.REST: S.IDLE,
        E.CLOSE: S.CLOSING,
        E.FAIL: S.FAILED,
    },
    S.INLINE_CLOSING: {
        E.CALL: S.INLINE_CLOSING,
        E.END_INLINE: S.CLOSING,
        E.REST: S.INLINE_CLOSING,
        E.CLOSE: S.INLINE_CLOSING,
        E.FAIL: S.FAILED,
    },
    S.CLOSING: {
        E.CALL: S.CLOSING,
        E.TAKE: S.CLOSING,
        E.TAKE_LAST: S.LAST,
        E.CLOSE: S.CLOSING,
        E.FAIL: S.FAILED,
    },
    S.LAST: {E.CALL: S.LAST, E.CLOSE: S.LAST, E.FAIL: S.FAILED},
    S.FAILED: {E.CALL: S.FAILED, E.END_INLINE: S.FAILED, E.CLOSE: S.FAILED, E.FAIL: S.FAILED},
}
WAKES_THREAD: Final = frozenset({S.THREAD, S.CLOSING, S.FAILED})  # entered: it has work, or must end
LOOP_WRITES: Final = frozenset({S.INLINE, S.INLINE_CALLED, S.INLINE_CLOSING})
CLOSED: Final = frozenset({S.INLINE_CLOSING, S.CLOSING, S.LAST, S.FAILED})  # nothing more is queued
