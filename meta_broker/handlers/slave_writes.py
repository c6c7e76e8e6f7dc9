"""A slave's replies to requests that only its master serves: they name the master."""

from journal.records.states import XaCode
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.writes import WriteRequest
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import MultiPut, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure


class SlaveWrites:
    """Refuses the writes that reach a slave. Loop thread only."""

    def __init__(self, context: Context, slave: ReplicaReceiver) -> None:
        self._context = context
        self._slave = slave

    def handle(self, request: WriteRequest, peer: Peer) -> None:
        text = self._text()
        match request:
            case TransactionCommand(verb=TransactionVerb.END):
                peer.end_in_flight()
            case TransactionCommand():
                # As any broker that cannot serve a branch: the client then looks for the master.
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
