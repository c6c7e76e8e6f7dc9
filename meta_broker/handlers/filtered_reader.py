"""Get and fetch for groups with a filter: the slice is filtered before it is sent (spec 4.8)."""

from collections.abc import Callable

from journal.errors import StorageFailed
from meta_broker.filters.emulation import Skip, decide
from meta_broker.filters.process import FilterFailed, FilterProcess
from meta_broker.filters.runner import Filters
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.message_reader import MessageReader, head_line, unreadable
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Fetch, Get
from meta_client.protocol.responses import FILTERED
from meta_client.protocol.status import Status


class FilteredReader:
    """Answers filtered requests. Loop thread only."""

    def __init__(self, context: Context, reading: MessageReader, filters: Filters) -> None:
        self._context = context
        self._reading = reading
        self._filters = filters

    def name_for(self, request: Get | Fetch) -> str | None:
        """Return the filter configured for the requesting group; None: it gets everything."""
        of_topic = self._context.config.filters.get(request.topic)
        return None if of_topic is None else of_topic.get(request.group)

    def submit(
        self,
        name: str,
        request: Get | Fetch,
        index: PartitionIndex,
        bytes_max: int,
        peer: Peer,
        retry: Callable[[], None],
    ) -> None:
        """Answer *request*, whose bytes exist, once filter *name* has processed them.

        Calls *retry* instead if they were deleted before its turn.
        """

        async def run(process: FilterProcess) -> None:
            if not index.start <= request.offset < index.end:
                retry()
                return
            # Read only now: a waiting request holds no bytes.
            try:
                chunk = await self._reading.read(index, request.offset, bytes_max)
                if not chunk:
                    resumes = await self._reading.when_loaded(lambda: index.resumes(request.offset))
                    peer.send(encode_result(Status.MOVED, b"%d" % resumes, request.opaque))
                    return
                answer = decide(await process.ask(request.group, chunk), len(chunk))
            except IndexDamaged as error:
                peer.send(index_damaged(error, request.opaque))
                return
            except StorageFailed as error:
                peer.send(unreadable(self._context, request, error))
                return
            except FilterFailed as error:
                text = f"group {request.group} of topic {request.topic}: {error}"
                peer.send(encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque))
                return
            if isinstance(answer, Skip):
                # Genuine clients send gets, and parse only a number.
                why = FILTERED if isinstance(request, Fetch) else b""
                moved_to = b"%d%b" % (request.offset + answer.size, why)
                peer.send(encode_result(Status.MOVED, moved_to, request.opaque))
                return
            # No places: a filtered reader is not sent to a slave, whose configuration may lack the filter.
            peer.send(head_line(self._context, request, answer.size, index, ()) + chunk[: answer.size])

        self._filters.submit(name, run)


def index_damaged(error: IndexDamaged, opaque: int) -> bytes:
    """Return the reply while an index is being rebuilt: ask again later."""
    return encode_result(Status.UNAVAILABLE, f"{error}: it is being rebuilt, ask again later".encode(), opaque)
