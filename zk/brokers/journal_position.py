"""The journal node of one broker: how far its master's journal was when the master last wrote it.

A master writes it at every start, and while it runs once something more was acknowledged. A directory that ends before
the node's position is an older copy, or has lost acknowledged records: offsets that it would give out were given out
before.
"""

from functools import partial
from typing import Annotated

import msgspec

from zk.brokers.json_node import JsonNode
from zk.tree.nodes import NodeInt
from zk.tree.paths import BrokerKey, BrokerNode

_TEXT_MAX = 1024

_Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class JournalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a journal: its last writer's epoch and incarnation, and the LSN below which everything was
    acknowledged and fsynced. *directory* and *host*: where that was; *time_ms*: since 1970."""

    epoch: NodeInt
    incarnation: NodeInt
    end: NodeInt
    directory: _Text = ""
    host: _Text = ""
    time_ms: NodeInt = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Compares positions of one broker: the smaller one is of an older copy."""
        return self.epoch, self.incarnation, self.end


_KEY = partial(BrokerKey, BrokerNode.JOURNAL)
_NODES = JsonNode(JournalPosition, _KEY, 8 * 1024, "what a metaq broker writes about its journal")
read_position, decode_position, write_position = _NODES.read, _NODES.decode, _NODES.write
