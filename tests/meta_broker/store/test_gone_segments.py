"""Segments that somebody deletes, or moves away, under a running broker: what was acknowledged can be put back."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import Put, TakeCheckpoint, TransactionVerb
from tests.crash.replicated import REPLICATED
from tests.fixtures.broker import BrokerProcess, wait_with
from tests.fixtures.replicas import Replicas, wait_identical, wait_until
from tests.fixtures.wire import Refused, WireClient
from zk.embedded.chroot import Chroot

CONFIG = """
[broker]
segment_bytes = 262144
message_bytes_max = 65536
checkpoint_bytes = 131072
checkpoint_seconds = 1.0

[topics.orders]
partitions = 1
"""
IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")
V = TransactionVerb


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.kill()
    broker.audit()


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted(broker.data.glob("*.journal"))


def delete_both_ends(broker: BrokerProcess) -> Callable[[], None]:
    return delete(broker, segments(broker)[0], segments(broker)[-1])


def delete_the_first(broker: BrokerProcess) -> Callable[[], None]:
    return delete(broker, segments(broker)[0])


def delete(broker: BrokerProcess, *gone: Path) -> Callable[[], None]:
    """Delete them; returns how they are put back, as the log says."""
    for path in gone:
        path.unlink()
    return lambda: copy_back(broker, *gone)


def copy_back(broker: BrokerProcess, *gone: Path) -> None:
    copied = set[Path]()
    for held in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # others open and close files meanwhile
            name, mark, _ = str(held.readlink()).partition(" (deleted)")
            if mark and Path(name) in gone:
                shutil.copyfile(held, name)
                copied.add(Path(name))
    assert copied == {*gone}


def replace_the_newest(broker: BrokerProcess) -> Callable[[], None]:
    """By a copy of itself, as tools for back-ups do."""
    newest = segments(broker)[-1]
    shutil.copyfile(newest, copy := broker.data / "copy")
    copy.rename(newest)
    return lambda: copy_back(broker, newest)


def move_the_newest(broker: BrokerProcess) -> Callable[[], None]:
    newest = segments(broker)[-1]
    elsewhere = newest.rename(broker.data.parent / newest.name)

    def put_back() -> None:
        elsewhere.rename(newest)

    return put_back


@pytest.mark.parametrize("lose", [delete_both_ends, delete_the_first, move_the_newest, replace_the_newest])
def test_nothing_is_written_any_more_and_what_was_acknowledged_can_be_put_back(
    broker: BrokerProcess, lose: Callable[[BrokerProcess], Callable[[], None]]
) -> None:
    acknowledged: list[bytes] = []

    def is_refused() -> bool:
        body = b"%d." % len(acknowledged) + bytes(1_000)
        answer = client.result(Put("orders", 0, 0, None, None, client.opaque(), body))
        if not answer.is_success:
            assert "was deleted or moved away: nothing was done" in answer.text
            return True
        acknowledged.append(body)
        return False

    with WireClient(broker.port) as client:
        client.verb(V.BEGIN, IN_DOUBT)
        client.put("orders", 0, b"in doubt", IN_DOUBT)
        client.verb(V.PREPARE, IN_DOUBT)
        for _ in itertools.takewhile(lambda _: len(segments(broker)) < 3, itertools.count()):
            assert not is_refused()
        put_back = lose(broker)
        wait_with(is_refused, broker)
        with pytest.raises(Refused, match="was deleted or moved away"):
            client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
        assert is_refused()
        put_back()
        # Records behind what is put back: a checkpoint that has them would let the next start pass over them.
        answer = client.result(TakeCheckpoint(client.opaque()))
        assert "was deleted or moved away" in answer.text, answer
    assert "files of the journal are gone, nothing is written any more" in broker.log
    assert broker.stop() == 0
    broker.start()
    with WireClient(broker.port) as client:
        client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
        found = [message.payload for _, message in client.read_all("orders", 0)]
        assert found == [*acknowledged, b"in doubt"]
        assert not is_refused()


def test_a_slave_confirms_nothing_any_more(tmp_path: Path, zookeeper: Chroot) -> None:
    """It would be promoted, as in sync, and then start without what it confirmed."""
    config = REPLICATED.replace("MODE", "sync")
    with Replicas(tmp_path / "both", zookeeper.connect, config) as running, WireClient(running.master.port) as client:
        slave = running.slaves[0]
        wait_until(lambda: running.is_in_sync(slave), "the slave is in sync")
        client.put("orders", 0, b"before")
        put_back = delete_the_first(slave)
        wait_until(lambda: "files of the journal are gone" in slave.log, "it is noticed")
        wait_until(
            lambda: "was deleted or moved away" in slave.log.partition("not following")[2], "it leaves its master"
        )
        with pytest.raises(Refused, match=r"not yet replicated|slaves in sync"):
            client.put("orders", 0, b"alone")

        def is_put() -> bool:
            return client.result(Put("orders", 0, 0, None, None, client.opaque(), b"together")).is_success

        with WireClient(slave.port) as reader:
            assert [message.payload for _, message in reader.read_all("orders", 0)] == [b"before"], "it serves on"
        put_back()
        assert slave.stop() == 0
        slave.start()
        wait_until(is_put, "the slave is in sync again")
        wait_identical(running.master.data, slave.data)
