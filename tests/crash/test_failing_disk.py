"""A disk that fails under a running broker: it says so, ends with 1, and nothing it acknowledged is lost."""

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import TransactionVerb
from tests.crash.workload import CONFIG, NO_CHECKPOINTS
from tests.fixtures.broker import BrokerProcess, ExecutedBroker
from tests.fixtures.wire import WireClient

IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")


def produce(port: int, acknowledged: list[tuple[int, bytes]]) -> None:
    """Put until the broker dies; also prepare one branch."""
    with contextlib.suppress(ConnectionError), WireClient(port) as client:
        for number in range(1_000_000):
            body = b"%d." % number + bytes(1000)
            place = client.put("orders", 0, body)
            assert place.offset is not None
            acknowledged.append((place.offset, body))


def prepare(port: int) -> None:
    with WireClient(port) as client:
        client.verb(TransactionVerb.BEGIN, IN_DOUBT)
        client.put("invoices", 0, b"in doubt", IN_DOUBT)
        assert client.verb(TransactionVerb.PREPARE, IN_DOUBT) == b"0"


def check_everything_is_there(broker: BrokerProcess, acknowledged: list[tuple[int, bytes]]) -> None:
    assert acknowledged
    with WireClient(broker.port) as client:
        stored = [(offset, message.payload) for offset, message in client.read_all("orders", 0)]
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) <= len(acknowledged) + 1
        keys = parse_keys(client.verb(TransactionVerb.RECOVER, None))
        assert keys == [IN_DOUBT]
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, IN_DOUBT)
        assert [message.payload for _, message in client.read_all("invoices", 0)] == [b"in doubt"]


def check_it_said_so(broker: BrokerProcess, reason: str) -> None:
    last = broker.log.splitlines()[-1]
    assert last.startswith(f"stopped: {broker.data}"), broker.log
    assert reason in last, last
    assert last.endswith(": nothing acknowledged is lost; start again once the disk is well")
    assert "Traceback" not in broker.log


def check_story(
    broker: BrokerProcess, reason: str, fail: Callable[[list[tuple[int, bytes]]], object], mend: Callable[[], object]
) -> None:
    """Under load *fail*, which sees what was acknowledged, breaks the disk: the broker ends and gives *reason*. After
    *mend* it starts again, and all is there."""
    acknowledged: list[tuple[int, bytes]] = []
    try:
        broker.start()
        prepare(broker.port)
        producer = threading.Thread(target=produce, args=[broker.port, acknowledged])
        producer.start()
        fail(acknowledged)
        assert broker.wait() == 1
        producer.join()
        check_it_said_so(broker, reason)
        mend()
        broker.start()
        check_everything_is_there(broker, acknowledged)
        assert broker.stop() == 0
    finally:
        broker.kill()
    broker.audit()


@pytest.mark.parametrize(
    ("flush", "limit", "config"),
    [
        pytest.param("sync", 150_000, CONFIG, id="sync"),
        pytest.param("sync", 262_143, CONFIG, id="sync, the last byte of a segment"),
        pytest.param("sync", 200_000, NO_CHECKPOINTS, id="sync, no checkpoint"),
        pytest.param("interval:50", 150_000, CONFIG, id="interval"),
        pytest.param("interval:50", 200_000, NO_CHECKPOINTS, id="interval, no checkpoint"),
    ],
)
def test_a_write_that_fails_stops_the_broker(flush: str, limit: int, config: str, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None, config=config)
    broker.flush = flush

    def fail(acknowledged: list[tuple[int, bytes]]) -> None:
        # From now on a write beyond the limit fails with EFBIG: Python ignores the signal that would come with it.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    check_story(broker, "File too large", fail, lambda: None)


class SyncsFail(ExecutedBroker):
    """A broker whose disk answers every fsync with EIO once the file `syncs-fail` stands beside its directory."""

    @property
    def switch(self) -> Path:
        return self.data.parent / "syncs-fail"

    def command(self) -> list[str]:
        code = f"""
import errno, os, sys
sync = os.fdatasync
def fdatasync(fd):
    if os.path.exists({str(self.switch)!r}):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(fd)
os.fdatasync = fdatasync
from meta_client.cli.main import main
main()
"""
        return [sys.executable, "-c", code, *self.words()]


@pytest.mark.parametrize("flush", ["sync", "interval:50"])
def test_an_fsync_that_fails_stops_the_broker(flush: str, tmp_path: Path) -> None:
    broker = SyncsFail(tmp_path / "broker", None, config=NO_CHECKPOINTS)
    broker.flush = flush

    def fail(acknowledged: list[tuple[int, bytes]]) -> None:
        deadline = time.monotonic() + 30
        while len(acknowledged) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        broker.switch.touch()

    check_story(broker, "Input/output error", fail, broker.switch.unlink)


def test_a_checkpoint_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    """A failed checkpoint lengthens replay; the journal stays usable."""
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            (broker.data / "index").rmdir()
            (broker.data / "index").write_bytes(b"")  # no index file can be made
            client.put("orders", 0, b"1")
            deadline = time.monotonic() + 30
            while "checkpoint failed" not in broker.log:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            client.put("orders", 0, b"2")
            assert [message.payload for _, message in client.read_all("orders", 0)] == [b"1", b"2"]
        broker.kill()
        (broker.data / "index").unlink()
        broker.start()
        with WireClient(broker.port) as client:
            assert [message.payload for _, message in client.read_all("orders", 0)] == [b"1", b"2"]
        assert broker.stop() == 0
    finally:
        broker.kill()
