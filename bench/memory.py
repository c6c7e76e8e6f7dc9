"""Memory cost of clients to the broker: idle ones, slow readers of much data, and open transactions."""

import contextlib
import itertools
import resource
import socket
import threading
import time
from collections.abc import Iterable

from bench.environment import CONFIG, Environment, environment
from bench.result import Result
from journal.records.xid import XaKey, Xid
from meta_client import Client
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get, Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.responses import Result as Answer

MIB = 1024 * 1024
CONNECTIONS = 2_000
IDLE_S = 3.0
READERS = 10
READER_BYTES = 1_000 * MIB
GET_BYTES = MIB
SLOW_S = 10.0
SLOW_READ_BYTES = 64 * 1024
SLOW_PAUSE_S = 0.01  # 6.5 MB/s each
TRANSACTION_BYTES = 2_000_000_000
BRANCHES = 100_000
BRANCHES_PER_FLIGHT = 1_000


def idle(case: str) -> Result:
    """Connect, request the version so that both sides have shaken hands, and stay idle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONNECTIONS)), hard))
    with environment("sync") as on, contextlib.ExitStack() as opened:
        before = on.memory()
        for _ in range(CONNECTIONS):
            connection = opened.enter_context(socket.create_connection(on.address, timeout=10))
            connection.sendall(b"".join(encode_request(Version(1))))
            assert connection.recv(4096).startswith(b"result 200")
        time.sleep(IDLE_S)
        return _growth(case, before, [on.memory()], {"connections": CONNECTIONS})


def slow(case: str) -> Result:
    """Fill a gigabyte; ten peers ask for all of it at once, in requests of a MiB, and read a little now and then."""
    with environment("interval:100") as on:
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


def branches(case: str) -> Result:
    """Begin BRANCHES with a timeout, put a message into each and prepare every other one; nothing is finished.

    Then put until a checkpoint has been taken: what that holds for a moment is in the detail.
    """
    config = f"[broker]\ntransaction_timeout_seconds_max = 3600\ncheckpoint_seconds = 600.0\n{CONFIG}"
    with environment("sync", config) as on, socket.create_connection(on.address, timeout=60) as connection:
        before, seen, then = on.memory(), [], []
        for first in range(0, BRANCHES, BRANCHES_PER_FLIGHT):
            numbers = range(first, first + BRANCHES_PER_FLIGHT)
            _answered(connection, itertools.chain.from_iterable(map(_left_open, numbers)))
            seen.append(on.memory())
        while not any((on.data / f"checkpoint.{number}").exists() for number in (1, 2)):
            _answered(connection, [Put("bench", 0, 0, None, None, 0, bytes(MIB))])
            then.append(on.memory())
        checkpoint = max(memory["anonymous"] for memory in then) - before["anonymous"]
        return _growth(case, before, seen, {"branches": BRANCHES, "with_a_checkpoint": round(checkpoint, 1)})


def transaction(case: str) -> Result:
    """Put TRANSACTION_BYTES into one branch, prepare it, commit it, and watch resident memory throughout."""
    with environment("sync") as on, Client(on.zookeeper) as client:
        before, seen = on.memory(), []
        producer, payload = client.producer(qualifier="bench"), b"x" * 1024
        producer.tpc_begin(Xid.of("large", "bench"), topics=("bench",))
        for number in range(TRANSACTION_BYTES // len(payload)):
            producer.send_async("bench", payload)
            if number % 50_000 == 0:
                seen.append(on.memory())
        assert producer.tpc_prepare()
        seen.append(on.memory())
        producer.tpc_commit()
        seen.append(on.memory())
        return _growth(case, before, seen, {"bytes": TRANSACTION_BYTES})


def _left_open(number: int) -> Iterable[Request]:
    key = XaKey(Xid.of(f"order-{number:08}", "metaq"), "bench")
    yield TransactionCommand(key, "bench", TransactionVerb.BEGIN, 3600, None, number)
    yield Put("bench", number % 8, 0, None, key, number, b"x" * 100)
    if number % 2:
        yield TransactionCommand(key, "bench", TransactionVerb.PREPARE, None, None, number)


def _answered(connection: socket.socket, requests: Iterable[Request]) -> None:
    """Send all requests and wait for every reply, which must be a success."""
    asked = [b"".join(encode_request(request)) for request in requests]
    sender = threading.Thread(target=connection.sendall, args=(b"".join(asked),))
    sender.start()
    decoder, left = ResponseDecoder(), len(asked)
    while left:
        answers = decoder.receive_data(connection.recv(1 << 18))
        assert all(isinstance(answer, Answer) and answer.is_success for answer in answers), answers
        left -= len(answers)
    sender.join()


def _fill(client: Client) -> None:
    """Put READER_BYTES in all, an eighth in each partition."""
    producer, payload = client.producer(), b"x" * (64 * 1024)
    for _ in range(READER_BYTES // len(payload)):
        producer.send_async("bench", payload)
    producer.flush()


def _read_slowly(address: tuple[str, int], number: int, stopping: threading.Event) -> None:
    """Fetch everything, partition by partition; each reader starts at another partition."""
    with socket.create_connection(address, timeout=10) as connection:
        asker = threading.Thread(target=_ask, args=(connection, number))
        asker.start()
        while not stopping.is_set() and connection.recv(SLOW_READ_BYTES):
            stopping.wait(SLOW_PAUSE_S)
        connection.shutdown(socket.SHUT_RDWR)
        asker.join()


def _ask(connection: socket.socket, number: int) -> None:
    each = READER_BYTES // 8
    with contextlib.suppress(OSError):  # the reader closes the connection in the middle
        for partition in range(number, number + 8):
            for offset in range(0, each, GET_BYTES):
                request = Get("bench", "slow", partition % 8, offset, GET_BYTES, offset)
                connection.sendall(b"".join(encode_request(request)))


def _watch(on: Environment) -> list[dict[str, float]]:
    seen, end = [], time.monotonic() + SLOW_S
    while time.monotonic() < end:
        time.sleep(0.2)
        seen.append(on.memory())
    return seen


def _growth(case: str, before: dict[str, float], seen: list[dict[str, float]], detail: dict[str, float]) -> Result:
    """Return the highest resident memory above that of the empty broker, which is the baseline."""
    worst = max(seen, key=lambda memory: memory["rss"])
    detail = detail | {"anonymous": round(max(memory["anonymous"] for memory in seen) - before["anonymous"], 1)}
    return Result(case, worst["rss"] - before["rss"], "MB", before["rss"], detail)
