"""A broker among the open files that the system allows it: a process under limits of its own."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from meta_broker import fd_limits
from meta_broker.fd_limits import REJECTING_MAX, RESERVED
from meta_client.protocol.requests import Put, TakeCheckpoint
from tests.fixtures.broker import CONFIG, ExecutedBroker
from tests.fixtures.wire import WireClient

PARTITIONS = 900
MANY = CONFIG + f"\n[topics.many]\npartitions = {PARTITIONS}\n"


class Limited(ExecutedBroker):
    """Started with *limits*, as `ulimit` takes them."""

    limits = "-Hn 20000"

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f'ulimit {self.limits}; exec "$@"', "sh", *super().command()]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Limited]:
    """Stopped; each of its partitions has an index file."""
    broker = Limited(tmp_path / "broker", None, config=MANY)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            client.send(*(Put("many", number, 0, None, None, number, b"x") for number in range(PARTITIONS)))
            assert all(getattr(client.receive(), "status", None) == 200 for _ in range(PARTITIONS))
            client.send(TakeCheckpoint(1))
            assert getattr(client.receive(), "status", None) == 200
        broker.kill()
        yield broker
    finally:
        broker.kill()


def test_a_start_opens_more_index_files_than_the_soft_limit_allows(filled: Limited) -> None:
    filled.limits = "-Sn 256"
    filled.start()
    assert "rebuilt from the journal" not in filled.log
    with WireClient(filled.port) as client:
        assert [len(client.read_all("many", number)) for number in range(PARTITIONS)] == [1] * PARTITIONS


def test_connections_leave_descriptors_for_segments(filled: Limited) -> None:
    filled.limits = "-n 1400"
    filled.start()
    with WireClient(filled.port) as client, contextlib.ExitStack() as stack:
        for _ in range(800):
            stack.enter_context(socket.create_connection(("127.0.0.1", filled.port)))
        for _ in range(20):  # of 4 MiB segments, five
            client.put("orders", 0, bytes(1 << 20))
        assert "connections refused" in filled.log


def test_an_index_that_no_descriptor_is_left_for_is_not_taken_for_damaged(filled: Limited) -> None:
    filled.limits = "-n 512"
    with pytest.raises(AssertionError, match=r"Too many open files: raise the limit \(ulimit -n\)"):
        filled.start()


@pytest.mark.parametrize(("left", "room"), [(None, 100), (100 + RESERVED, 100), (REJECTING_MAX + 60, 30), (0, 1)])
def test_fewer_connections_than_wanted_leave_files_for_the_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: int | None, room: int
) -> None:
    monkeypatch.setattr(fd_limits, "_available", lambda: left)
    assert fd_limits.connections_allowed(100) == room
    if left == 0:
        with pytest.raises(StorageFailed, match=r"raise the limit \(ulimit -n\)"):
            fd_limits.check_available(tmp_path, 1)
    else:
        fd_limits.check_available(tmp_path, 1)
