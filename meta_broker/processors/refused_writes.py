"""A slave's answers to what only its master does: who that is."""

from journal.states import XaCode
from meta_broker.processors.context import Context, Peer, SlaveOf
from meta_broker.processors.writes import Write
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import MultiPut, Put, Transaction, TransactionVerb
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure


class RefusedWrites:
    """Implements Writes. Loop thread only."""

    def __init__(self, context: Context, slave: SlaveOf) -> None:
        self._context = context
        self._slave = slave

    def handle(self, request: Write, peer: Peer) -> None:
        text = self._text()
        match request:
            case Transaction(verb=TransactionVerb.END):
                peer.unanswered()
            case Transaction():
                # What a client does about any broker that can't serve a branch: it asks where the master is.
                failure = format_xa_failure(XaCode.XAER_RMFAIL, text)
                peer.send(encode_result(Status.INTERNAL_ERROR, failure.encode(), request.opaque))
            case _:
                if isinstance(request, Put | MultiPut):
                    self._context.counters.puts += 1
                    self._context.counters.puts_failed += 1
                peer.send(encode_result(Status.UNAVAILABLE, text.encode(), request.opaque))

    def _text(self) -> str:
        master = self._slave.master
        where = f"its master is {master}" if master else "it has not heard from its master yet"
        broker_id = self._context.config.broker_id
        return f"this is slave {self._slave.slave_id} of broker {broker_id}, which takes no writes: {where}"

    def expire(self) -> bool:
        return False

    def peer_gone(self, peer: Peer) -> None:
        del peer  # nothing of it began here
