"""Baselines: the machine's limits, measured in the same run, because ratios vary less than figures."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 256 * 1024
SYNC_BYTES = 1024
SYNC_S = 2.0


@dataclass(frozen=True, slots=True)
class CopyBaseline:
    """Bytes over loopback into a preallocated file of another process, and back by sendfile."""

    size: int
    in_s: float
    back_s: float

    @property
    def bytes_per_s(self) -> float:
        """Rate of the whole round trip."""
        return self.size / (self.in_s + self.back_s)

    def detail(self) -> dict[str, float]:
        mb = self.size / 1e6
        return {"floor_in_mb_s": round(mb / self.in_s, 1), "floor_back_mb_s": round(mb / self.back_s, 1)}


def copy_baseline(directory: Path, size: int) -> CopyBaseline:
    """Send *size* bytes to a child process, which writes them to a file and sends them back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.baselines", str(port), str(directory / "baseline"), str(size)]
        )
        connection, _ = server.accept()
    with connection:
        chunk = os.urandom(CHUNK_BYTES)
        start = time.perf_counter()
        for _ in range(size // CHUNK_BYTES):
            connection.sendall(chunk)
        assert connection.recv(1) == b"."  # all of it is in the file
        middle = time.perf_counter()
        connection.sendall(b".")
        left, buffer = size // CHUNK_BYTES * CHUNK_BYTES, bytearray(CHUNK_BYTES)
        while left:
            left -= connection.recv_into(buffer)
        end = time.perf_counter()
    assert child.wait() == 0
    return CopyBaseline(size // CHUNK_BYTES * CHUNK_BYTES, middle - start, end - middle)


def _file_and_return(port: int, path: Path, size: int) -> None:
    size = size // CHUNK_BYTES * CHUNK_BYTES
    with socket.create_connection(("127.0.0.1", port)) as connection, path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        buffer, position = bytearray(CHUNK_BYTES), 0
        while position < size:
            received = connection.recv_into(buffer)
            position += os.pwrite(file.fileno(), memoryview(buffer)[:received], position)
        connection.sendall(b".")
        assert connection.recv(1) == b"."
        position = 0
        while position < size:
            position += os.sendfile(connection.fileno(), file.fileno(), position, size - position)
    path.unlink()


def fsync_baseline(directory: Path) -> float:
    """Return fdatasync calls a second, each after a write of 1 KiB into a preallocated file, one after the other."""
    path = directory / "baseline"
    with path.open("w+b") as file:
        fd = file.fileno()
        os.posix_fallocate(fd, 0, 64 << 20)
        os.fsync(fd)
        data, count = os.urandom(SYNC_BYTES), 0
        start = time.perf_counter()
        while time.perf_counter() - start < SYNC_S:
            os.pwrite(fd, data, count * SYNC_BYTES % (64 << 20))
            os.fdatasync(fd)
            count += 1
        elapsed = time.perf_counter() - start
    path.unlink()
    return count / elapsed


if __name__ == "__main__":
    _file_and_return(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
