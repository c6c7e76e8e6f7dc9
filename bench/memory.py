"""What clients cost the broker in memory: those that do nothing, and those that ask for much and take it slowly."""

import contextlib
import resource
import socket
import threading
import time

from bench.result import Result
from bench.stage import Stage, stage
from meta_client import Client
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get, Version

MIB = 1024 * 1024
CONNECTIONS = 2_000
IDLE_S = 3.0
READERS = 10
READER_BYTES = 1_000 * MIB
GET_BYTES = MIB
SLOW_S = 10.0
SLOW_READ_BYTES = 64 * 1024
SLOW_PAUSE_S = 0.01  # 6.5 MB/s each


def idle(case: str) -> Result:
    """Connect, ask for the version so that both sides know each other, and do nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONNECTIONS)), hard))
    with stage("sync") as on, contextlib.ExitStack() as opened:
        before = on.memory()
        for _ in range(CONNECTIONS):
            connection = opened.enter_context(socket.create_connection(on.address, timeout=10))
            connection.sendall(b"".join(encode_request(Version(1))))
            assert connection.recv(4096).startswith(b"result 200")
        time.sleep(IDLE_S)
        return _growth(case, before, [on.memory()], {"connections": CONNECTIONS})


def slow(case: str) -> Result:
    """Fill a gigabyte; ten peers ask for all of it at once, in requests of a MiB, and read a little now and then."""
    with stage("interval:100") as on:
        before = on.memory()
        with Client(on.zookeeper) as client:
            _fill(client)
        filled, stopping = on.memory(), threading.Event()
        readers = [
            threading.Thread(target=_read_slowly, args=(on.address, number, stopping)) for number in range(READERS)
        ]
        for reader in readers:
            reader.start()
        try:
            seen = _watch(on)
        finally:
            stopping.set()
            for reader in readers:
                reader.join()
    return _growth(case, before, seen, {"readers": READERS, "rss_filled": round(filled["rss"], 1)})


def _fill(client: Client) -> None:
    """READER_BYTES in all, an eighth in each partition."""
    producer, payload = client.producer(), b"x" * (64 * 1024)
    for _ in range(READER_BYTES // len(payload)):
        producer.send_async("bench", payload)
    producer.flush()


def _read_slowly(address: tuple[str, int], number: int, stopping: threading.Event) -> None:
    """Ask for everything, partition by partition, from a partition that differs by reader."""
    with socket.create_connection(address, timeout=10) as connection:
        asker = threading.Thread(target=_ask, args=(connection, number))
        asker.start()
        while not stopping.is_set() and connection.recv(SLOW_READ_BYTES):
            stopping.wait(SLOW_PAUSE_S)
        connection.shutdown(socket.SHUT_RDWR)
        asker.join()


def _ask(connection: socket.socket, number: int) -> None:
    each = READER_BYTES // 8
    with contextlib.suppress(OSError):  # the reader hangs up in the middle
        for partition in range(number, number + 8):
            for offset in range(0, each, GET_BYTES):
                request = Get("bench", "slow", partition % 8, offset, GET_BYTES, offset)
                connection.sendall(b"".join(encode_request(request)))


def _watch(on: Stage) -> list[dict[str, float]]:
    seen, end = [], time.monotonic() + SLOW_S
    while time.monotonic() < end:
        time.sleep(0.2)
        seen.append(on.memory())
    return seen


def _growth(case: str, before: dict[str, float], seen: list[dict[str, float]], detail: dict[str, float]) -> Result:
    """The highest resident memory above that of the empty broker, which is the floor."""
    worst = max(seen, key=lambda memory: memory["rss"])
    detail = detail | {"anonymous": round(max(memory["anonymous"] for memory in seen) - before["anonymous"], 1)}
    return Result(case, worst["rss"] - before["rss"], "MB", before["rss"], detail)
