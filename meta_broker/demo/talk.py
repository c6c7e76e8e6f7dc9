"""Protocol between the stage and its two child processes: JSON lines, over the child's stdin and stdout. Pure.

Passwords travel this way too: every user of the machine can read command lines.
"""

from typing import Final

import msgspec

from meta_client.protocol.errors import MetaError

LINE_BYTES_MAX = 1024 * 1024


class Malformed(MetaError):
    """A line that is not part of the protocol."""


class _Said(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class StartProducers(_Said, frozen=True, kw_only=True):
    """Recover, then send every invoice of *orders* that the database lacks."""

    dsn: str
    zookeeper: str
    decisions: str  # directory of the coordinator's log
    orders: list[str]
    limit: int  # number of invoices to begin before Proceed


class StartConsumers(_Said, frozen=True, kw_only=True):
    """Consume until told to stop."""

    dsn: str
    zookeeper: str
    consumers: int


class Trap(_Said, frozen=True):
    """Hold one transaction at each of these steps, the next one that reaches it, until Release."""

    steps: list[str]


class Proceed(_Said, frozen=True):
    """Begin up to *limit* invoices, counted from the start."""

    limit: int


class Release(_Said, frozen=True):
    """Release every held transaction."""


class Stop(_Said, frozen=True):
    """Stop cleanly."""


class RecoveredOne(msgspec.Struct, frozen=True):
    """Result of recovery for one transaction: *action* is COMMIT or ROLL_BACK."""

    transaction: str
    action: str


class Recovered(_Said, frozen=True):
    """Recovery is done; work begins."""

    transactions: list[RecoveredOne]


class Committed(_Said, frozen=True):
    """Invoices committed so far by this process, and attempts that were rolled back."""

    invoices: int
    rolled_back: int


class Trapped(_Said, frozen=True):
    """A transaction is held at *step*."""

    step: str
    transaction: str


class Finished(_Said, frozen=True):
    """Every invoice is committed, or every consumer closed."""


Order = StartProducers | StartConsumers | Trap | Proceed | Release | Stop
Event = Recovered | Committed | Trapped | Finished

_ORDERS: Final = msgspec.json.Decoder(Order)
_EVENTS: Final = msgspec.json.Decoder(Event)


def encode(said: Order | Event) -> bytes:
    return msgspec.json.encode(said) + b"\n"


def decode_order(line: bytes) -> Order:
    """Decode an order. Raises Malformed."""
    try:
        order: Order = _ORDERS.decode(line)
    except msgspec.DecodeError as error:
        raise Malformed(f"an order that reads {line[:80]!r}: {error}") from error
    return order


def decode_event(line: bytes) -> Event:
    """Decode an event. Raises Malformed."""
    try:
        event: Event = _EVENTS.decode(line)
    except msgspec.DecodeError as error:
        raise Malformed(f"an event that reads {line[:80]!r}: {error}") from error
    return event
