"""Hosts that are namespaces, and every fault of the network between them, shown with plain sockets."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.fixtures.hosts import Host, Network, network
from tests.fixtures.ways import LOST, QUEUE_BYTES_MAX, Way, late, slow

WAIT_S = 30.0  # for what has to come; after a cut, TCP sends again later each time
NEVER_S = 0.3  # for what can't come, however long one waits


@pytest.fixture
def net() -> Iterator[Network]:
    with network("near", "far", "third") as hosts:
        yield hosts


@contextlib.contextmanager
def connected(near: Host, far: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection."""
    with far.on():
        listener = socket.create_server((far.address, 0))
    with listener, near.on(), socket.create_connection(listener.getsockname(), timeout=WAIT_S) as near_end:
        far_end, _ = listener.accept()
        with far_end:
            far_end.settimeout(WAIT_S)
            yield near_end, far_end


def nothing_comes(end: socket.socket) -> bool:
    """Return whether the socket stays silent: no bytes, no end of stream, no error."""
    end.settimeout(NEVER_S)
    try:
        end.recv(1)
    except TimeoutError:
        return end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    else:
        return False
    finally:
        end.settimeout(WAIT_S)


def receive(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = end.recv(size - len(data))
        assert chunk, f"the stream ended after {len(data)} of {size} bytes"
        data += chunk
    return bytes(data)


def test_what_is_sent_into_a_pulled_cable_gets_no_answer_and_no_error_and_arrives_once_it_is_back(net: Network) -> None:
    near, far = net["near"], net["far"]
    with connected(near, far) as (near_end, far_end):
        net.pull(far)
        near_end.sendall(b"question")
        far_end.sendall(b"news")
        assert nothing_comes(near_end)
        assert nothing_comes(far_end)
        net.heal()
        assert receive(far_end, 8) == b"question"
        assert receive(near_end, 4) == b"news"


def test_a_process_that_ends_behind_a_pulled_cable_ends_silently(net: Network) -> None:
    with connected(net["near"], net["far"]) as (near_end, far_end):
        net.pull(net["far"])
        far_end.close()
        assert nothing_comes(near_end)
        net.heal()
        assert near_end.recv(1) == b""


def test_connecting_is_refused_by_a_host_and_not_answered_without_a_cable(net: Network) -> None:
    near, far = net["near"], net["far"]
    with far.on(), socket.create_server((far.address, 0)) as server:
        address = server.getsockname()
    with near.on():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=WAIT_S)
        net.one_way(far, near, LOST)  # it refuses, and that does not arrive
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=NEVER_S)


def test_half_open_one_side_arrives_and_answers_do_not(net: Network) -> None:
    near, far = net["near"], net["far"]
    with connected(near, far) as (near_end, far_end):
        net.one_way(far, near, LOST)
        near_end.sendall(b"question")
        assert receive(far_end, 8) == b"question"
        far_end.sendall(b"answer")
        assert nothing_comes(near_end)
        net.heal()
        assert receive(near_end, 6) == b"answer"


def test_late_a_round_takes_both_delays(net: Network) -> None:
    near, far = net["near"], net["far"]
    with connected(near, far) as (near_end, far_end):
        net.one_way(near, far, late(0.2))
        net.one_way(far, near, late(0.1))
        started = time.monotonic()
        near_end.sendall(b"question")
        assert receive(far_end, 8) == b"question"
        assert time.monotonic() - started >= 0.2
        far_end.sendall(b"answer")
        assert receive(near_end, 6) == b"answer"
        assert time.monotonic() - started >= 0.3


def test_slow_no_more_arrives_than_the_rate_lets_through(net: Network) -> None:
    near, far = net["near"], net["far"]
    with connected(near, far) as (near_end, far_end):
        net.between(near, far, slow(400_000))
        data = bytes(range(250)) * 800
        started = time.monotonic()
        near_end.sendall(data)
        assert receive(far_end, len(data)) == data
        assert time.monotonic() - started >= len(data) / 400_000


def test_parted_each_side_is_a_network_of_its_own(net: Network) -> None:
    near, far, third = net["near"], net["far"], net["third"]
    with connected(near, far) as (near_end, far_end), connected(near, third) as (to_third, third_end):
        net.part([near, far])
        near_end.sendall(b"together")
        assert receive(far_end, 8) == b"together"
        to_third.sendall(b"apart")
        assert nothing_comes(third_end)
        net.heal(but=third)
        assert nothing_comes(third_end)
        net.heal()
        assert receive(third_end, 5) == b"apart"


def test_a_host_reaches_itself_without_a_cable_and_so_do_processes_started_there(net: Network) -> None:
    near = net["near"]
    net.pull(near)
    with near.on(), socket.create_server((near.address, 0)) as server:
        server.settimeout(WAIT_S)
        address = server.getsockname()
        program = f"import socket; socket.create_connection({address!r}).sendall(b'here')"
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            end, peer = server.accept()
            with end:
                assert peer[0] == near.address
                assert receive(end, 4) == b"here"
        assert process.returncode == 0


def test_a_queue_is_bounded_and_in_order_whatever_its_rule_was() -> None:
    way = Way()
    way.follow(slow(1000))
    packets = [bytes([number]) * 50_000 for number in range(30)]
    for packet in packets:
        way.take(packet, 0.0)
    fit = QUEUE_BYTES_MAX // 50_000
    assert way.next_due == 50.0
    assert list(way.give(49.9)) == []
    assert list(way.give(100.0)) == packets[:2]
    way.follow(late(0.0))
    way.take(b"last", 100.0)  # must not overtake
    assert list(way.give(50.0 * fit - 0.1)) == packets[2 : fit - 1]
    assert list(way.give(50.0 * fit)) == [packets[fit - 1], b"last"]
    way.take(b"lost", 2000.0)
    way.follow(LOST)
    assert way.next_due == float("inf")
