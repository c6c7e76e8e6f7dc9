"""State that relays share: branches that brokers may not have committed yet, and brokers whose messages are deferred.

The relay's row has it as JSON, `{"batches": [["GTRID", BROKER], ...], "deferred": [BROKER, ...]}`. While a broker is
named, messages for it wait, or they might overtake; those for others do not. So no broker is in branches of two
batches, which bounds the text. Pure.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from meta_client.outbox.errors import DamagedRow
from meta_client.protocol.integers import INT32_MAX
from meta_client.transactions.names import name_in

BrokerId = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class BatchBranch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Part of a batch that is at one broker."""

    gtrid: str
    broker_id: BrokerId

    def __post_init__(self) -> None:
        if name_in(self.gtrid) is None:
            raise ValueError(f"{self.gtrid[:100]} is no branch of a batch")

    @property
    def table_id(self) -> str:
        """Id of the decision table that decided it."""
        name = name_in(self.gtrid)
        assert name is not None, "as checked on reading"
        return name.table_id


class RelayState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the relay's row."""

    batches: tuple[BatchBranch, ...] = ()
    deferred: tuple[BrokerId, ...] = ()

    def dump(self) -> str:
        """Return its text."""
        return msgspec.json.encode(self).decode()


def branches_of(gtrid: str, broker_ids: Iterable[int]) -> list[BatchBranch]:
    """Return the branches of a batch with messages at these brokers."""
    return [BatchBranch(gtrid, broker_id) for broker_id in sorted(set(broker_ids))]


def load(text: str) -> RelayState:
    """Return the state in *text*; nothing in an empty one. Raises DamagedRow."""
    try:
        return msgspec.json.decode(text, type=RelayState) if text else RelayState()
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedRow(str(error)) from error
