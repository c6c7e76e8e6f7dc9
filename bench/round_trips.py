"""Two round trips by threads of Python, as a branch has, to a server that does next to nothing: their upper limit.

    python -m bench.round_trips [THREADS]...

Beside `xa-N`. The server, another process, writes what has arrived from all connections, fsyncs once, and answers. Over
a connection a thread no thread wakes another one; over a shared one, as the client has, a reader wakes each.
"""

import asyncio
import collections
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvloop

REQUESTS = b"x" * 1100 + b"\n", b"x" * 40 + b"\n"  # of a message and its PREPARE, and of COMMIT
ANSWER = b"answered"
FILE_BYTES = 64 << 20  # written again from its beginning
SECONDS = 4.0


class _Log:
    """The file, and requests that have arrived and are not answered."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._file, bytes(FILE_BYTES), 0)
        os.fsync(self._file)
        self._at = 0
        self._arrived: list[tuple[asyncio.WriteTransport, bytes]] = []

    def add(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._answer)
        self._arrived.append((transport, data))

    def _answer(self) -> None:
        data = b"".join(each for _, each in self._arrived)
        os.pwrite(self._file, data, self._at)
        self._at = (self._at + len(data)) % (FILE_BYTES - (1 << 20))
        os.fdatasync(self._file)
        for transport, each in self._arrived:
            transport.write(ANSWER * each.count(b"\n"))
        self._arrived.clear()


class _Server(asyncio.Protocol):
    """One connection. A line is a request."""

    def __init__(self, log: _Log) -> None:
        self._log = log

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._log.add(self._transport, data)


def _serve(directory: Path, ready: Connection) -> None:
    async def listen() -> None:
        log = _Log(directory / "written")
        server = await asyncio.get_running_loop().create_server(lambda: _Server(log), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname())
        await server.serve_forever()

    uvloop.run(listen())


def _connect(address: tuple[str, int]) -> socket.socket:
    connected = socket.create_connection(address)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class _Own:
    """A connection a thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._here = threading.local()
        self._address = address

    def exchange(self, request: bytes) -> None:
        if not hasattr(self._here, "socket"):
            self._here.socket = _connect(self._address)
        self._here.socket.sendall(request)
        self._here.socket.recv(len(ANSWER))


class _Shared:
    """One connection, whose answers a thread reads and hands to those that wait."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = _connect(address)
        self._sending = threading.Lock()
        self._waiting: collections.deque[threading.Lock] = collections.deque()
        threading.Thread(target=self._read, daemon=True).start()

    def exchange(self, request: bytes) -> None:
        awaited = threading.Lock()
        awaited.acquire()
        with self._sending:
            self._waiting.append(awaited)
            self._socket.sendall(request)
        awaited.acquire()

    def _read(self) -> None:
        while data := self._socket.recv(1 << 16):
            for _ in range(len(data) // len(ANSWER)):
                self._waiting.popleft().release()


def measured(way: _Own | _Shared, threads: int) -> str:
    """Have *threads* make pairs of round trips for SECONDS; tell how many, and their processor time here."""
    counts, end = [0] * threads, time.perf_counter() + SECONDS
    before = time.process_time()

    def work(number: int) -> None:
        while time.perf_counter() < end:
            for request in REQUESTS:
                way.exchange(request)
            counts[number] += 1

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return f"{sum(counts) / SECONDS:8,.0f}/s, {(time.process_time() - before) / sum(counts) * 1e6:4.0f} us"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name:
        ready, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(Path(name), theirs), daemon=True)
        server.start()
        address = ready.recv()
        for threads in map(int, sys.argv[1:] or ("1", "16", "64")):
            own, shared = measured(_Own(address), threads), measured(_Shared(address), threads)
            print(f"{threads:3} threads: {own} over a connection each, {shared} over one")
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
