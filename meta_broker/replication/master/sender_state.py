"""States of the master's end of a link: one table, walked by one function. Pure.

A state says what the slave may send and what it is sent; a block stops the sending for a while.
"""

from collections.abc import Mapping
from typing import Final

from journal.records.state_table import IdentityEnum
from meta_broker.replication.link_protocol import LinkRefused


class SenderState(IdentityEnum):
    """State of a link, as its master sees it."""

    GREETING = "before its HANDSHAKE"
    STARTING = "before it was let in"  # the proof, or the checkpoint to begin with, is read
    FETCHING = "while it sends what this master lost"
    SNAPSHOT = "while it is sent a checkpoint"
    STREAMING = "while it is sent the journal"
    ENDED = "after the end"


class SenderEvent(IdentityEnum):
    """Event that may change the state. The first three are frames of the slave."""

    HANDSHAKE = "a HANDSHAKE"
    FLUSH_ACK = "a FLUSH_ACK"
    JOURNAL_CHUNK = "a JOURNAL_CHUNK"
    FETCH_TAIL = "FETCH_TAIL is sent"
    ACCEPT = "ACCEPT is sent"
    FULL_RESYNC = "FULL_RESYNC is sent"
    SNAPSHOT_SENT = "the checkpoint is sent"
    END = "the slave is refused or dropped, or gone"


class SendBlock(IdentityEnum):
    """Reason to send nothing until it is gone."""

    PEER = "the slave does not read"
    READ = "a thread reads what is sent next"
    RETRY = "the disk did not return it; it is read again later"


S = SenderState
E = SenderEvent

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.GREETING: {E.HANDSHAKE: S.STARTING, E.END: S.ENDED},
    S.STARTING: {E.FETCH_TAIL: S.FETCHING, E.ACCEPT: S.STREAMING, E.FULL_RESYNC: S.SNAPSHOT, E.END: S.ENDED},
    S.FETCHING: {E.JOURNAL_CHUNK: S.FETCHING, E.END: S.ENDED},
    S.SNAPSHOT: {E.FLUSH_ACK: S.SNAPSHOT, E.SNAPSHOT_SENT: S.STREAMING, E.END: S.ENDED},
    S.STREAMING: {E.FLUSH_ACK: S.STREAMING, E.END: S.ENDED},
    S.ENDED: {E.END: S.ENDED},
}
SENDS: Final = frozenset({S.SNAPSHOT, S.STREAMING})
_FRAMES: Final = frozenset({E.HANDSHAKE, E.FLUSH_ACK, E.JOURNAL_CHUNK})


def next_state(state: SenderState, event: SenderEvent) -> SenderState:
    """Return the state after *event*. A pair that the table lacks is the slave's breach, LinkRefused, or a mistake of
    this program."""
    if (after := NEXT[state].get(event)) is None:
        assert event in _FRAMES, f"{event.name} while {state.name}"
        raise LinkRefused(f"{event.value} {state.value}")
    return after
