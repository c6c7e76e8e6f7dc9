"""HTTP server of the admin port: the standard library's, a thread a request, with limits on both.

Not on an event loop: it has to answer when that hangs. Connections, and the time and bytes of each request, are
limited; beyond CONNECTIONS_MAX the oldest is ended, so that requests which are never finished keep nobody out.
"""

import contextlib
import errno
import functools
import io
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from meta_client.protocol.errors import MetaError
from zk.forks import detach_descriptor, invalidate_after_fork

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16
THREADS_MAX: Final = 2 * CONNECTIONS_MAX  # those of ended connections included, until they notice
REQUEST_S_MAX: Final = 10.0  # of one connection, from its begin to its end
HEAD_BYTES_MAX: Final = 16 * 1024  # of a request
POLL_S: Final = 0.1  # a stop waits so long


class CannotServe(MetaError):
    """The admin port can't be opened: choose another, or stop what uses it."""


class AdminServer:
    """Serves *app* on *host*:*port* from a thread of its own until `close`. Use as a context manager.

    *tls* returns the context of a connection that begins. Raises CannotServe, which names *option*. A process forked
    from this one does not hold the port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app: "WSGIApplication",
        option: str = "--admin-port",
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        try:
            self._server = _Server(host, port, app, tls)
        except OSError as error:
            raise _cannot_serve(host, port, option, error) from error
        self.port: int = self._server.server_address[1]
        self.url = f"http{'s' * (tls is not None)}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="admin", daemon=True)
        self._thread.start()
        invalidate_after_fork(self, functools.partial(detach_descriptor, self._server.socket))

    def close(self) -> None:
        """Stop listening, and end every request. Idempotent; blocks for a moment."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        with contextlib.suppress(OSError):  # it was closed before
            self._server.socket.shutdown(socket.SHUT_RDWR)  # for a child, too, that was forked a moment ago
        self._server.server_close()
        self._server.end_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # two processes would share the port, and each scrape meet either
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, host: str, port: int, app: "WSGIApplication", tls: Callable[[], ssl.SSLContext] | None) -> None:
        self._tls = tls
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        self._lock = threading.Lock()
        self._running = 0  # threads
        self._open: dict[socket.socket, float] = {}  # connections, and when each is to end; oldest first
        super().__init__((str(found[4][0]), port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks DNS for a name, which may take long
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                self._close_request(next(iter(self._open)))
            is_full = self._running >= THREADS_MAX
            if not is_full:
                self._running += 1
                self._open[request] = time.monotonic() + REQUEST_S_MAX
        if is_full:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            with self._lock:
                self._running -= 1
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._running -= 1

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one connection, in its thread; the handshake is part of its time."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_S_MAX)
        with self._tls().wrap_socket(request.dup(), server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            for request in [request for request, until in self._open.items() if until <= now]:
                self._close_request(request)

    def end_all(self) -> None:
        with self._lock:
            for request in list(self._open):
                self._close_request(request)

    def _close_request(self, request: socket.socket) -> None:
        """End a connection: its thread finds it closed. Under the lock."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("admin request ended", exc_info=True)  # a peer that went, or was too slow


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Head(self.rfile.detach()))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: the client sees the answer."""


class _Head(io.RawIOBase):
    """The first HEAD_BYTES_MAX bytes of *raw*, which must not end before: half a request is none."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._left = HEAD_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(memoryview(buffer)[: self._left])
        if not count and self._left:
            raise ConnectionAbortedError("it ended in the middle of a request")
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _cannot_serve(host: str, port: int, option: str, error: OSError) -> CannotServe:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        remedy = f"stop what uses that port, or choose another with {option} (0: any free one)"
    else:
        remedy = "name an address of this machine"
    return CannotServe(f"cannot serve metrics on {host}:{port}: {error.strerror or error}: {remedy}")
