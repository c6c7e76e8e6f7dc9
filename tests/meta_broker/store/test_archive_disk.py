"""An archive in a directory on another disk, which is full, or hangs: retention waits, and nothing else does."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meta_client.protocol.requests import Put
from meta_client.protocol.status import Status
from tests.fixtures.broker import BrokerProcess, wait_with
from tests.fixtures.small_disk import enlarge, small_disk
from tests.fixtures.wire import WireClient

SEGMENT = 256 * 1024
CONFIG = """
[broker]
segment_bytes = {segment}
message_bytes_max = 65536
checkpoint_seconds = 0.5

[topics.orders]
partitions = 1

[retention]
bytes = {segment}
when = 0.2
policy = "archive"
archive = "{archive}"
"""


@contextmanager
def broker_with(data: Path, archive: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data, None, config=CONFIG.format(segment=SEGMENT, archive=archive))
    try:
        yield broker.start()
    finally:
        broker.kill()
    broker.audit()


def put(client: WireClient, number: int) -> None:
    answer = client.result(Put("orders", 0, 0, None, None, client.opaque(), (b"%d." % number).ljust(10_000, b".")))
    assert answer.status == Status.SUCCESS, answer


def stored(archive: Path) -> int:
    return len(list(archive.glob("*.journal")))


def test_a_full_disk_of_the_archive_refuses_no_message(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with (
        small_disk(archive, "1m"),
        broker_with(tmp_path / "data", archive) as broker,
        WireClient(broker.port) as client,
    ):
        number = 0
        while broker.log.count("No space left on device") < 3:
            put(client, number)
            number += 1
            assert number < 100_000, broker.log
        assert "new messages are refused" not in broker.log
        assert "checkpoint failed" not in broker.log
        kept = stored(archive)
        enlarge(archive, "1g")
        wait_with(lambda: stored(archive) > kept, broker)
        wait_with(lambda: len(list(broker.data.glob("*.journal"))) <= 3, broker)


def test_an_archive_that_hangs_holds_up_neither_checkpoints_nor_a_stop(tmp_path: Path) -> None:
    """A FIFO that nobody writes: opening it for reading lasts, as on a network file system that is away."""
    archive = tmp_path / "archive"
    archive.mkdir()
    os.mkfifo(archive / "manifest.jsonl")
    with broker_with(tmp_path / "data", archive) as broker:
        with WireClient(broker.port) as client:

            def has_more_checkpoints() -> bool:
                put(client, 0)
                return broker.log.count("checkpoint written") > checkpoints + 4

            for number in range(150):
                put(client, number)
            checkpoints = broker.log.count("checkpoint written")
            wait_with(has_more_checkpoints, broker)
        assert broker.stop() == 0
