"""A socket that speaks the wire from a script: what a broker would do wrong, late, or not at all."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.requests import Dropped, Get, Request, Version
from meta_client.protocol.version import version_text
from zk.tree.broker_url import BrokerUrl

Handler = Callable[[Request], bytes | None]  # what to send for a request; None: nothing
Answer = tuple[int, bytes]  # status, and text or messages
Answers = Mapping[type[Request], Callable[[Request], Answer]]
HANG_UP = b"\x00hang up"  # as an answer: close the connection instead


class Peer:
    """Listens on 127.0.0.1 and runs a handler for every request, in order, on each connection."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.received: list[Request] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._arrived = threading.Event()  # a client may be connected long before accept() hands its socket over
        self._serving: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> BrokerUrl:
        return BrokerUrl("127.0.0.1", self._listener.getsockname()[1])

    def send(self, data: bytes) -> None:
        """Say something unasked on the newest connection; waits for the first."""
        assert self._arrived.wait(60)
        self._open[-1].sendall(data)

    def hang_up(self) -> None:
        """End every connection; waits for the first."""
        assert self._arrived.wait(60)
        self._shut_down()

    def _shut_down(self) -> None:
        for connection in list(self._open):  # not those that come because of it
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # first: connections it has already accepted are closed too
        self._listener.close()
        self._shut_down()
        for thread in self._serving:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(connection)
            self._arrived.set()
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._serving.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = RequestDecoder()
        with connection, contextlib.suppress(OSError):
            while chunk := connection.recv(1 << 16):
                for request in decoder.receive_data(chunk):
                    assert not isinstance(request, Dropped)
                    self.received.append(request)
                    if (answer := self.handler(request)) == HANG_UP:
                        return
                    connection.sendall(answer or b"")


@contextlib.contextmanager
def listening(handler: Handler) -> Iterator[Peer]:
    """A peer, closed at the end."""
    peer = Peer(handler)
    try:
        yield peer
    finally:
        peer.close()


def ok(request: Request, text: bytes = b"") -> bytes:
    """A 200 for *request*."""
    return b"result 200 %d %d\r\n%b" % (len(text), opaque_of(request), text)


def opaque_of(request: Request) -> int:
    opaque: int = getattr(request, "opaque")  # noqa: B009 - every request but Quit, which no test sends
    return opaque


def answering(answers: Answers, *extensions: str) -> Handler:
    """Handle requests by their type, as a metaq broker with *extensions*; refuses others with a 400."""

    def handle(request: Request) -> bytes:
        if isinstance(request, Version):
            return ok(request, version_text("9.9", extensions).encode())
        answer = answers.get(type(request))
        status, text = (400, b"Bad request") if answer is None else answer(request)
        if isinstance(request, Get) and status == 200:
            return b"value %d %d\r\n%b" % (len(text), request.opaque, text)
        return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)

    return handle
