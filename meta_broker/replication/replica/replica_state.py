"""States of a slave: one table, walked by one function. Pure.

A link is a round through the table, from SEEKING back to it; what each event makes a slave do, `replica` decides.
"""

from collections.abc import Mapping
from typing import Final

from journal.records.state_table import IdentityEnum


class ReplicaState(IdentityEnum):
    """State of a slave."""

    SEEKING = "no link: the master is looked up and connected to, with pauses"
    GREETING = "connected: VERSION is not answered"
    LOGGING_IN = "a message of the login is not answered"
    ASKING = "REPLICATE is not answered"
    HANDSHAKE = "the master has not said where the stream begins"
    VERIFYING = "the proof is compared, and nothing more handled"
    VERIFYING_LOSS = "the same, for a master that asks for what it lost"
    SNAPSHOT = "a checkpoint arrives in chunks"
    STREAMING = "the journal arrives; no heartbeat yet"
    FOLLOWING = "the journal arrives, and heartbeats"
    SENDING_TAIL = "the master is sent what it lost"
    CLOSING = "the link was left; its connection is not closed yet"
    STOPPED = "the copy has to change, an operator has to act, or the broker stops"


class ReplicaEvent(IdentityEnum):
    """Event that may change the state of a slave."""

    CONNECT = "a connection is made"
    ANSWER = "VERSION or REPLICATE is answered, or the login done"
    LOG_IN = "VERSION, or a message of the login, is answered, and the login goes on"
    ACCEPT = "ACCEPT arrives"
    FETCH_TAIL = "FETCH_TAIL arrives"
    FULL_RESYNC = "FULL_RESYNC arrives"
    SNAPSHOT_CHUNK = "SNAPSHOT_CHUNK arrives"
    AGREE = "the proof is right, or the checkpoint complete"
    JOURNAL_CHUNK = "JOURNAL_CHUNK arrives"
    HEARTBEAT = "HEARTBEAT arrives"
    LEAVE = "either side refuses the other, or the master is silent or gone"
    CLOSE = "the connection is closed, or none could be made"
    STOP = "nothing more may be received"


S = ReplicaState
E = ReplicaEvent

_END: Final[Mapping[E, S]] = {E.LEAVE: S.CLOSING, E.STOP: S.STOPPED}

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.SEEKING: {E.CONNECT: S.GREETING, **_END},
    S.GREETING: {E.ANSWER: S.ASKING, E.LOG_IN: S.LOGGING_IN, **_END},
    S.LOGGING_IN: {E.ANSWER: S.ASKING, E.LOG_IN: S.LOGGING_IN, **_END},
    S.ASKING: {E.ANSWER: S.HANDSHAKE, **_END},
    S.HANDSHAKE: {E.ACCEPT: S.VERIFYING, E.FETCH_TAIL: S.VERIFYING_LOSS, E.FULL_RESYNC: S.SNAPSHOT, **_END},
    S.VERIFYING: {E.AGREE: S.STREAMING, **_END},
    S.VERIFYING_LOSS: {E.AGREE: S.SENDING_TAIL, **_END},
    S.SNAPSHOT: {E.SNAPSHOT_CHUNK: S.SNAPSHOT, E.HEARTBEAT: S.SNAPSHOT, E.AGREE: S.STREAMING, **_END},
    S.STREAMING: {E.JOURNAL_CHUNK: S.STREAMING, E.HEARTBEAT: S.FOLLOWING, **_END},
    S.FOLLOWING: {E.JOURNAL_CHUNK: S.FOLLOWING, E.HEARTBEAT: S.FOLLOWING, **_END},
    S.SENDING_TAIL: {E.HEARTBEAT: S.SENDING_TAIL, **_END},
    S.CLOSING: {E.LEAVE: S.CLOSING, E.CLOSE: S.SEEKING, E.STOP: S.STOPPED},
    S.STOPPED: {E.LEAVE: S.STOPPED, E.CLOSE: S.STOPPED, E.STOP: S.STOPPED},
}
READS_LINES: Final = frozenset({S.GREETING, S.LOGGING_IN, S.ASKING})
VERIFIES: Final = frozenset({S.VERIFYING, S.VERIFYING_LOSS})
STREAMS: Final = frozenset({S.STREAMING, S.FOLLOWING})
UNLINKED: Final = frozenset({S.SEEKING, S.CLOSING, S.STOPPED})
READS_FRAMES: Final = frozenset(S) - READS_LINES - VERIFIES - UNLINKED
