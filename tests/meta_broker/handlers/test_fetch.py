"""Cost of waiting fetches to the broker and to other clients."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.protocol.encoder import encode_request
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Data, Result
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.wire import WireClient

MIB = 1024 * 1024
WAIT_MS = 30_000  # the longest that a broker allows


@contextlib.contextmanager
def broker_with(directory: Path, **broker: object) -> Iterator[BrokerProcess]:
    lines = "".join(f"{key} = {value}\n" for key, value in broker.items())
    config = CONFIG.replace("[broker]\n", f"[broker]\n{lines}")
    with running_broker(directory / "broker", None, config=config) as process:
        yield process


def fetch(partition: int, offset: int, opaque: int, wait_ms: int = WAIT_MS, bytes_min: int = 1) -> Fetch:
    return Fetch("orders", "g", partition, offset, MIB, bytes_min, wait_ms, opaque)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def cpu_s_during(pid: int, seconds: float) -> float:
    before = cpu_s(pid)
    time.sleep(seconds)
    return cpu_s(pid) - before


def test_thousands_wait_for_nothing_and_cost_nothing(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as waiter, WireClient(lone_broker.port) as client:
        waiter.send(*(fetch(number % 4, 0, number) for number in range(10_000)))
        client.put("invoices", 0, b"x")  # they have been read by now, or this one would not be answered
        time.sleep(0.5)
        assert min(cpu_s_during(lone_broker.pid, 1.0) for _ in range(3)) < 0.05
        client.put("orders", 1, b"hello")
        woken = [waiter.receive() for _ in range(2_500)]
        assert [answer.opaque for answer in woken] == list(range(1, 10_000, 4))
        assert all(isinstance(answer, Data) and len(answer.body) == HEADER_BYTES + 5 for answer in woken)


def test_a_wait_ends_on_time_among_thousands(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.send(*(fetch(0, 0, number) for number in range(5_000)))
        for wait_ms in (300, 20, 100):
            started = time.monotonic()
            assert client.ask(fetch(1, 0, -wait_ms, wait_ms)) == Data(b"", 0, "m", -wait_ms)
            # Not as long as the thousands wait.
            assert wait_ms / 1000 - 0.001 <= time.monotonic() - started < WAIT_MS / 2000


def test_the_broker_bounds_the_wait(tmp_path: Path) -> None:
    with broker_with(tmp_path, fetch_wait_ms_max=100) as broker, WireClient(broker.port) as client:
        started = time.monotonic()
        assert client.ask(fetch(0, 0, 1)) == Data(b"", 0, "m", 1)
        assert 0.09 < time.monotonic() - started < WAIT_MS / 2000


def test_too_many_waiting_are_refused_and_those_with_data_are_not(tmp_path: Path) -> None:
    bounds = {"fetches_waiting_max": 5, "fetches_waiting_per_connection_max": 3}
    with broker_with(tmp_path, **bounds) as broker, WireClient(broker.port) as one, WireClient(broker.port) as two:
        two.put("orders", 1, b"hello")
        one.send(*(fetch(0, 0, number) for number in range(4)))
        answer = one.receive()
        assert isinstance(answer, Result)
        assert (answer.status, answer.opaque) == (503, 3)
        assert answer.text == "3 fetches of this connection wait: ask later, fetches_waiting_per_connection_max is 3"
        two.send(*(fetch(0, 0, number) for number in range(10, 13)))
        answer = two.receive()
        assert isinstance(answer, Result)
        assert (answer.status, answer.opaque) == (503, 12)
        assert answer.text == "5 fetches wait here: ask later, fetches_waiting_max is 5"
        found = two.ask(fetch(1, 0, 14, bytes_min=1000))
        assert isinstance(found, Data)
        assert len(found.body) == found.log_end == 25
        two.socket.close()  # its two leave room
        with WireClient(broker.port) as three:
            deadline = time.monotonic() + 60
            while (answer := three.ask(fetch(0, 0, 15, 50))) != Data(b"", 0, "m", 15):
                assert isinstance(answer, Result)
                assert time.monotonic() < deadline


def test_a_clean_stop_answers_waiting_requests(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.put("orders", 0, b"hello")
        client.send(*(fetch(0, 25, number) for number in range(100)), fetch(0, 0, 100, bytes_min=1000))
        client.put("invoices", 0, b"x")
        started = time.monotonic()
        assert lone_broker.stop() == 0
        assert time.monotonic() - started < WAIT_MS / 2000
        assert [client.receive() for _ in range(101)] == [Data(b"", 25, "m", number) for number in range(101)]
        with pytest.raises(ConnectionError):
            client.receive()
    assert "Traceback" not in lone_broker.log, lone_broker.log


def test_a_peer_that_reads_nothing_with_thousands_waiting_costs_a_bounded_amount(tmp_path: Path) -> None:
    with broker_with(tmp_path, unsent_bytes_max=256 * 1024) as broker, WireClient(broker.port) as client:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", broker.port))
            stalled.sendall(
                b"".join(encode_request(fetch(0, 0, number, bytes_min=20_000))[0] for number in range(10_000))
            )
            client.put("invoices", 0, b"x")
            before, cpu_before = resident_bytes(broker.pid), cpu_s(broker.pid)
            for _ in range(100):  # many short runs, which the broker would join for each of them
                client.put("orders", 0, bytes(1000))
            assert cpu_s(broker.pid) - cpu_before < 5
            assert resident_bytes(broker.pid) - before < 24 * MIB
        assert client.put("orders", 0, b"still here").offset == 102_000


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_everything_is_fetched_once_and_in_order_while_it_is_written(lone_broker: BrokerProcess) -> None:
    total = 2_000

    def produce() -> None:
        with WireClient(lone_broker.port) as producer:
            for number in range(total):
                producer.put("orders", 0, b"%d" % number)

    thread = threading.Thread(target=produce)
    thread.start()
    with WireClient(lone_broker.port) as client:
        stream, answers = bytearray(), 0
        while not stream.endswith(b"%d" % (total - 1)):
            answer = client.ask(fetch(0, len(stream), answers))
            assert isinstance(answer, Data)
            assert answer.body
            assert answer.log_end >= len(stream) + len(answer.body)
            stream += answer.body
            answers += 1
        assert bytes(stream) == client_read(client)
    thread.join()


def client_read(client: WireClient) -> bytes:
    answer = client.get("orders", 0, 0, 4 * MIB)
    assert not isinstance(answer, Result)
    return bytes(answer.body)
