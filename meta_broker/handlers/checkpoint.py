"""checkpoint: takes one now, on request (extension, PROTOCOL.md)."""

from meta_broker.handlers.context import Context, Peer
from meta_broker.store.checkpoint_job import NoCheckpoint
from meta_client.protocol.answers import CheckpointTaken, format_checkpoint_taken
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import TakeCheckpoint
from meta_client.protocol.status import Status


class CheckpointHandler:
    """Answers once the checkpoint is durable. Waiting requests are bounded by each connection's requests in flight."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handle(self, request: TakeCheckpoint, peer: Peer) -> None:
        times = self._context.times
        durations, began = times.of(request), times.defer()

        def answer(taken: CheckpointTaken | NoCheckpoint) -> None:
            times.observe(durations, began)
            if isinstance(taken, CheckpointTaken):
                peer.send(encode_result(Status.SUCCESS, format_checkpoint_taken(taken), request.opaque))
            else:
                status = Status.UNAVAILABLE if self._context.is_stopping else Status.INTERNAL_ERROR
                peer.send(encode_result(status, taken.reason.encode(), request.opaque))

        self._context.store.checkpoints.request(answer)
