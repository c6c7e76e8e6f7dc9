"""A get or fetch of a group that has a filter: the slice goes through it before it is answered (spec 4.8)."""

from collections.abc import Callable

from journal.errors import StorageFailed
from meta_broker.filters.emulation import Skip, decide
from meta_broker.filters.process import FilterFailed, FilterProcess
from meta_broker.filters.runner import Filters
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.reading import Reading, head_line, unreadable
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Fetch, Get
from meta_client.protocol.responses import FILTERED
from meta_client.protocol.status import Status


class Filtering:
    """Answers what has to be filtered. Loop thread only."""

    def __init__(self, context: Context, reading: Reading, filters: Filters) -> None:
        self._context = context
        self._reading = reading
        self._filters = filters

    def name_for(self, request: Get | Fetch) -> str | None:
        """The filter that the configuration file gives the asking group; None: it gets everything."""
        of_topic = self._context.config.filters.get(request.topic)
        return None if of_topic is None else of_topic.get(request.group)

    def submit(
        self,
        name: str,
        request: Get | Fetch,
        index: PartitionIndex,
        bytes_max: int,
        peer: Peer,
        anew: Callable[[], None],
    ) -> None:
        """Answer *request*, which asks for bytes that are there, once filter *name* has seen them.

        *anew* judges it once more: what it asks for may be gone when its turn comes.
        """

        async def run(process: FilterProcess) -> None:
            if not index.start <= request.offset < index.end:
                anew()
                return
            # Only now: what waits holds no bytes.
            try:
                chunk = await self._reading.read(index, request.offset, bytes_max)
                if not chunk:
                    resumes = await self._reading.warmed(lambda: index.resumes(request.offset))
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
                # A get may be a genuine client's, which reads nothing but a number there.
                why = FILTERED if isinstance(request, Fetch) else b""
                moved_to = b"%d%b" % (request.offset + answer.size, why)
                peer.send(encode_result(Status.MOVED, moved_to, request.opaque))
                return
            # The filter is the master's to know: nobody is sent to a slave whose configuration may lack it.
            peer.send(head_line(self._context, request, answer.size, index, ()) + chunk[: answer.size])

        self._filters.submit(name, run)


def index_damaged(error: IndexDamaged, opaque: int) -> bytes:
    """The answer while an index is being rebuilt: whoever asks again is answered once it is."""
    return encode_result(Status.UNAVAILABLE, f"{error}: it is being rebuilt, ask again later".encode(), opaque)
