"""Time of a send while other clients read data that is not in memory."""

import contextlib
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.environment import environment
from bench.result import Result
from meta_client import Client
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get

MIB = 1024 * 1024
PARTITIONS = 8
STORED_BYTES = 768 * MIB
READERS = 10
GET_BYTES = MIB
READ_INTERVAL_S = 0.025  # 400 MB/s in all, so that the two cores are not the bound
SENDS_S = 6.0
SEND_INTERVAL_S = 0.002
CONFIG = f"[broker]\nsegment_bytes = {64 * MIB}\n[topics.bench]\npartitions = {PARTITIONS}\n"


def p99(case: str) -> Result:
    """Measure a send in milliseconds, the 99th percentile, while READERS read data that only the disk has.

    The baseline is the same with the data in memory: the difference is the disk alone. No send waits for an fsync,
    which would count the disk twice.
    """
    with environment("interval:100", CONFIG) as on, Client(on.zookeeper) as client:
        _fill(client)
        alone = _sends(client)
        with _readers(on.address):
            near = _sends(client)
        with _cold(on.data), _readers(on.address):
            far = _sends(client)
    detail = {"alone": alone[98], "far_p50": far[49], "near_p50": near[49], "far_p999": far[99], "near_p999": near[99]}
    return Result(case, far[98], "ms", near[98], {key: round(value, 3) for key, value in detail.items()})


def _fill(client: Client) -> None:
    producer, payload = client.producer(), b"x" * (64 * 1024)
    for _ in range(STORED_BYTES // len(payload)):
        producer.send_async("bench", payload)
    producer.flush()


def _sends(client: Client) -> list[float]:
    """Return the percentiles of a paced sender's delays, in milliseconds, and last the 99.9th."""
    producer, payload, taken = client.producer(), b"x" * 1024, []
    due, end = time.perf_counter(), time.perf_counter() + SENDS_S
    while time.perf_counter() < end:
        due += SEND_INTERVAL_S
        time.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        producer.send("bench", payload)
        taken.append((time.perf_counter() - began) * 1000)
    return [*statistics.quantiles(taken, n=100), statistics.quantiles(taken, n=1000)[998]]


@contextlib.contextmanager
def _readers(address: tuple[str, int]) -> Iterator[None]:
    """Run the readers in another process, so that their work does not delay the sender."""
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    process = context.Process(target=_read_all, args=(address, stopping))
    process.start()
    time.sleep(1.0)  # until they read
    try:
        yield
        if not process.is_alive():
            raise RuntimeError("the readers ended early")
    finally:
        stopping.set()
        process.join()


def _read_all(address: tuple[str, int], stopping: Event) -> None:
    threads = [threading.Thread(target=_read, args=(address, number, stopping)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(address: tuple[str, int], number: int, stopping: Event) -> None:
    """Read a partition in a loop; each reader starts at another place."""
    each = STORED_BYTES // PARTITIONS * 9 // 10  # the partitions are not quite equal
    offset, buffer = each // READERS * number, bytearray(2 * GET_BYTES)
    with socket.create_connection(address, timeout=30) as connection:
        while not stopping.is_set():
            began = time.monotonic()
            get = Get("bench", "far", number % PARTITIONS, offset % each, GET_BYTES, 7)
            connection.sendall(b"".join(encode_request(get)))
            wanted = len(b"value %d 7\r\n" % GET_BYTES) + GET_BYTES
            while wanted:
                if not (received := connection.recv_into(buffer)):
                    raise RuntimeError("the broker hung up")
                wanted -= received
            offset += GET_BYTES
            stopping.wait(max(0.0, READ_INTERVAL_S - (time.monotonic() - began)))


@contextlib.contextmanager
def _cold(data: Path) -> Iterator[None]:
    """Keep the journal, except its last segment, out of the page cache: as if memory were small."""
    stopping = threading.Event()

    def drop() -> None:
        while not stopping.is_set():
            for path in sorted(data.glob("*.journal"))[:-1]:
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
            stopping.wait(0.02)

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
