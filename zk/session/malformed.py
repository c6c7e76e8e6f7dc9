"""Nodes that were skipped because they can't be read: one of them costs itself alone.

Any client of the ensemble can write any node, so that listings and rebalances skip what does not decode, name it once,
and go on. Where a node decides about safety, as the replication node does, it is read strictly instead.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from zk.errors import MalformedNode, RefusedNode
from zk.tree.nodes import Node

T = TypeVar("T")

ReadChildren = Callable[[Collection[str]], tuple[Mapping[str, list[str]], Mapping[str, RefusedNode]]]
ReadNodes = Callable[[Collection[str]], tuple[Mapping[str, Node], Mapping[str, RefusedNode]]]

NODES_MAX: Final = 10_000  # remembered; more are skipped all the same

_log = logging.getLogger(__name__)


class MalformedNodes:
    """The skipped nodes of a session. Any thread; each method is one step for the others."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[MalformedNode | RefusedNode, float]] = {}  # and when it was skipped last

    @property
    def found(self) -> Mapping[str, MalformedNode | RefusedNode]:
        """Nodes that were skipped when they were last read, by path."""
        return self.found_since(0.0)

    def found_since(self, at: float) -> dict[str, MalformedNode | RefusedNode]:
        """Return those of `found` that were skipped at monotonic time *at* or later: others may be gone by now."""
        return {path: error for path, (error, skipped_at) in self._found.copy().items() if skipped_at >= at}

    def skip(self, error: MalformedNode | RefusedNode) -> None:
        """Record a node, and log it unless that was done before."""
        former = self._found.get(error.path)
        if former is None and len(self._found) >= NODES_MAX:
            return
        if former is None or str(former[0]) != str(error):
            _log.warning("node skipped: %s", error)
        self._found[error.path] = error, time.monotonic()

    def children(self, reader: ReadChildren, paths: Collection[str]) -> dict[str, list[str]]:
        """List the children of nodes with *reader*, a session's `children_readable`. Omits those that do not exist, and
        skips those that access rules deny."""
        found, refused = reader(paths)
        for denied in refused.values():
            self.skip(denied)
        for path in paths:
            if path not in refused:
                self._found.pop(path, None)
        return dict(found)

    def read(self, reader: ReadNodes, paths: Collection[str], decode: Callable[[str, bytes], T]) -> dict[str, T]:
        """Read and decode nodes with *reader*, a session's `read_readable`. Omits those that do not exist, and skips
        those that *decode* raises MalformedNode for, or that access rules deny."""
        nodes, refused = reader(paths)
        for denied in refused.values():
            self.skip(denied)
        good: dict[str, T] = {}
        for path, node in nodes.items():
            try:
                good[path] = decode(path, node.data)
            except MalformedNode as error:
                self.skip(error)
        for path in paths:
            if path not in refused and (path in good or path not in nodes):
                self._found.pop(path, None)
        return good
