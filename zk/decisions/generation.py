"""The node of a decision table: the generation that the table had reached when a resolver last raised it.

A table below its node was restored to an earlier time, or is a copy: rows may be gone from it, decisions among them.
"""

import msgspec

from zk.brokers.json_node import JsonNode
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import NodeInt
from zk.tree.paths import DecisionTableKey


class TableGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """Generation of a table, which only rises. *time_ms*: since 1970, by the resolver's clock; for display."""

    generation: NodeInt
    time_ms: NodeInt = 0


_NODES = JsonNode(TableGeneration, DecisionTableKey, 1024, "what a resolver writes about its decision table")
read_generation, decode_generation, write_generation = _NODES.read, _NODES.decode, _NODES.write


def read_generations(session: ZooKeeperSession) -> dict[str, int]:
    """Read the generation of every decision table that has a node, by table id. Raises MalformedNode,
    ZooKeeperUnavailable."""
    found: dict[str, int] = {}
    for table_id in session.children(f"{session.paths.root}/metaq/tables"):
        if (node := read_generation(session, table_id).node) is not None:  # else it went meanwhile
            found[table_id] = node.generation
    return found
