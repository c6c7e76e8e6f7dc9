"""Makes spans of what a traced client had stored: from the request to its acknowledgement, fsync and slaves included.

The context comes with the messages, in their attributes; what prepares or ends a branch belongs to the branch's first
traced message. Nothing is looked at unless tracing is on.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from journal.records.xid import BranchKey
from meta_broker.handlers.context import Context, Peer
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import FLAG_ATTRIBUTE, decode_body, walk_frames
from meta_client.protocol.requests import MultiPut, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.trace_context import split_traceparent
from meta_client.tracing import Hooks

BRANCHES_MAX: Final = 10_000  # whose contexts are kept; the oldest goes
SPANS_MAX: Final = 128  # of one batch, whose messages may be of many traces
_NAME: Final = b"traceparent="
_VERBS: Final = {
    TransactionVerb.PREPARE: "prepare",
    TransactionVerb.COMMIT_ONE_PHASE: "commit",
    TransactionVerb.COMMIT_TWO_PHASE: "commit",
    TransactionVerb.ROLLBACK: "roll back",
}
Traced = Put | MultiPut | TransactionCommand
TRACED: Final = (Put, MultiPut, TransactionCommand)


class WriteTraces:
    """Spans of one master's writes. Loop thread only."""

    def __init__(self, context: Context, hooks: Hooks) -> None:
        self._context = context
        self._hooks = hooks
        self._branches: OrderedDict[BranchKey, str] = OrderedDict()  # contexts of branches that are not over

    def wrap(self, handle: Callable[[Traced, Peer], None]) -> Callable[[Traced, Peer], None]:
        def handle_traced(request: Traced, peer: Peer) -> None:
            parents, began_ns, journal = self._parents(request), time.time_ns(), self._context.store.journal
            before = journal.end
            handle(request, peer)
            if parents and journal.end > before:  # else nothing was stored
                loop = asyncio.get_running_loop()

                def acknowledged() -> None:  # must not raise: it would stop the journal
                    loop.call_soon(self._record_spans, request, parents, began_ns)

                self._context.store.high_watermark.run_after(journal.end, acknowledged)

        return handle_traced

    def _parents(self, request: Traced) -> list[str]:
        """Return the sampled contexts that *request* belongs to."""
        if isinstance(request, TransactionCommand):
            if request.key is None or request.verb not in _VERBS:
                return []
            take = self._branches.get if request.verb is TransactionVerb.PREPARE else self._branches.pop
            known = take(request.key, None)
            return [] if known is None else [known]
        found = list(dict.fromkeys(_sampled(request)))[:SPANS_MAX]
        if found and request.key is not None:
            self._branches.setdefault(request.key, found[0])
            if len(self._branches) > BRANCHES_MAX:
                self._branches.popitem(last=False)
        return found

    def _record_spans(self, request: Traced, parents: list[str], began_ns: int) -> None:
        broker_id = self._context.config.broker_id
        for parent in parents:
            if isinstance(request, TransactionCommand):
                self._hooks.stored(_VERBS[request.verb], parent, began_ns, broker_id, None, request.key)
            else:
                self._hooks.stored(f"store {request.topic}", parent, began_ns, broker_id, request.topic, request.key)


def _sampled(put: Put | MultiPut) -> Iterator[str]:
    """Yield the sampled contexts of the messages."""
    body = bytes(put.body)
    if _NAME not in body:
        return
    frames = [(put.flag, body)] if isinstance(put, Put) else _frames(body)
    for flag, data in frames:
        if not flag & FLAG_ATTRIBUTE:
            continue
        try:
            attribute, _ = decode_body(FLAG_ATTRIBUTE, data)
        except ValueError:
            continue  # stored as it is: no broker checks an attribute
        assert attribute is not None
        _, parent = split_traceparent(attribute)
        if parent is not None and int(parent[-2:], 16) & 1:
            yield parent


def _frames(body: bytes) -> Iterator[tuple[int, bytes]]:
    try:
        for frame in walk_frames(body, verify_checksums=False):
            yield frame.flag, frame.data
    except InvalidMessage:
        return  # the handler refuses the batch
