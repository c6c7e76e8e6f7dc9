"""The indexer brings blocks up to the newest checkpoint, whatever happens to topics, files and messages meanwhile."""

import asyncio
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from meta_broker.config.broker_config import TopicConfig
from meta_broker.config.sections import RetentionSection
from meta_broker.store import key_files, key_indexer
from meta_broker.store.key_block import KeyBlock
from meta_broker.store.key_files import KeyFiles
from meta_broker.store.key_indexer import KeyIndexer
from meta_broker.store.key_reading import gather
from meta_broker.store.topics import Topics
from meta_client.protocol.messages import encode_body, encode_frame
from tests.fixtures.loops import until
from tests.meta_broker.store.test_retention import ORDERS, STOCK, Stage, stage

INDEXED = {name.topic: TopicConfig(partitions=2, index="attribute") for name in (ORDERS, STOCK)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_indexer, "TAIL_BYTES_MIN", 1000)
    monkeypatch.setattr(key_indexer, "REST", 0.0)


class IndexerStage:
    def __init__(self, on: Stage, path: Path, worker: ThreadPoolExecutor) -> None:
        self.on = on
        self.topics = Topics(INDEXED)
        self.indexer = KeyIndexer(path / "keys", on.store, self.topics, worker)

    def put(self, name: PartitionName, count: int = 10, frames: bytes | None = None, step: int = 1) -> None:
        """*count* messages whose ids are *step* apart; *frames*: no messages, which no client can put."""
        for number in range(count):
            frame = encode_frame(number * step, *encode_body(b"x" * 400, f"key-{number}")) if frames is None else frames
            self.on.publish_done(self.on.store.transactions.put(name, [frame], len(frame), 1))

    async def files(self, name: PartitionName) -> KeyFiles | None:
        return await self.indexer.files_of(name, self.on.store.indexes.by_name[name])

    async def covered(self, name: PartitionName) -> list[tuple[int, int]]:
        files = await self.files(name)
        assert files is not None
        return [(each.start, each.end) for each in files.covered_ranges]

    async def round(self) -> None:
        """Until the indexer has nothing to do."""
        self.indexer.rescan()
        await self.done()

    async def done(self) -> None:
        await until(lambda: self.indexer._task is None)

    def end(self, name: PartitionName) -> int:
        return self.on.store.indexes.by_name[name].end


@asynccontextmanager
async def opened(path: Path, bytes_kept: int | None = None) -> AsyncIterator[IndexerStage]:
    async with stage(path, RetentionSection(bytes=bytes_kept, when=0.0)) as on:
        with ThreadPoolExecutor(1) as worker:
            indexing = IndexerStage(on, path, worker)
            try:
                yield indexing
            finally:
                await indexing.indexer.close()


def test_blocks_cover_what_checkpoints_made_durable(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as on:
            await on.round()  # nothing yet
            on.put(ORDERS)
            on.put(STOCK, count=1)  # too short for a block
            await on.on.checkpoint()  # which tells the indexer
            await on.done()
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]
            assert await on.covered(STOCK) == []
            before = on.end(ORDERS)
            on.put(ORDERS)
            await on.round()
            assert await on.covered(ORDERS) == [(0, before)], "no checkpoint has the rest"
            await on.on.checkpoint()
            on.indexer.rescan()
            on.indexer.rescan()  # while it runs
            await on.done()
            assert (await on.covered(ORDERS))[-1][1] == on.end(ORDERS)
        async with opened(tmp_path) as on:  # recovered messages are durable
            assert (await on.covered(ORDERS))[-1][1] == on.end(ORDERS)
            await on.round()
            await on.indexer.close()
            await on.indexer.close()
            on.indexer.rescan()
            assert on.indexer._task is None

    asyncio.run(story())


def test_topics_that_have_no_index_any_more_lose_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            on.put(STOCK)
            await on.on.checkpoint()
            await on.done()
            on.topics.replace_file({"orders": INDEXED["orders"], "stock": TopicConfig(partitions=2)})
            await on.round()
            assert await on.files(STOCK) is None
            assert [path.name for path in (tmp_path / "keys").iterdir()] == ["orders-0"]
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]
            (tmp_path / "keys" / "notes").write_bytes(b"")
            on.topics.replace_file({})
            await on.round()
            assert "key indexes of other topics not removed" in caplog.text

    asyncio.run(story())


def before_each_piece(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Have the worker call *change* whenever it is about to read messages."""

    def gather_then(*arguments: Any) -> KeyBlock:
        change()
        return gather(*arguments)

    monkeypatch.setattr(key_indexer, "gather", gather_then)


def test_a_topic_may_lose_its_index_while_another_one_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            on.put(STOCK)
            before_each_piece(monkeypatch, lambda: on.topics.replace_file({"orders": INDEXED["orders"]}))
            await on.on.checkpoint()
            await on.done()
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]
            assert not (tmp_path / "keys" / "stock-1").exists()

    asyncio.run(story())


def test_messages_may_go_while_they_are_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_indexer, "RUNS_MAX", 4)

    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            index = on.on.store.indexes.of(ORDERS)
            with monkeypatch.context() as patch:
                before_each_piece(patch, lambda: index.trim(index.end - index.end // 10))
                await on.on.checkpoint()
                await on.done()
            assert await on.covered(ORDERS) == []
            on.put(ORDERS)
            await on.on.checkpoint()
            await on.done()
            assert (await on.covered(ORDERS))[-1][1] == on.end(ORDERS)

    asyncio.run(story())


def test_a_block_spans_no_more_than_its_entries_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (key_indexer, key_files):
        monkeypatch.setattr(module, "SPAN_MAX", 1000)  # two messages

    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            await on.on.checkpoint()
            await on.done()
            step = on.end(ORDERS) // 5
            assert await on.covered(ORDERS) == [(step * number, step * (number + 1)) for number in range(4)]

    asyncio.run(story())


def test_a_close_ends_the_work_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()

    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            before_each_piece(monkeypatch, lambda: assert_set(may_go_on))
            await on.on.checkpoint()
            await until(lambda: ORDERS in on.indexer._files)
            await on.indexer.close()
            assert on.indexer._task is None
            may_go_on.set()
            assert await on.covered(ORDERS) == []

    asyncio.run(story())


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.parametrize("count", [10, 30])
def test_blocks_of_another_journal_are_dropped(tmp_path: Path, count: int) -> None:
    """Their last message has another id here, or lies behind the end."""

    async def story() -> None:
        async with opened(tmp_path / "other") as on:
            on.put(ORDERS, 7)
            on.put(ORDERS, count - 7)
            await on.on.checkpoint()
            await on.done()
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]
        shutil.copytree(tmp_path / "other" / "keys", tmp_path / "this" / "keys")
        async with opened(tmp_path / "this") as on:
            on.put(ORDERS, 10, step=7)
            assert await on.covered(ORDERS) == []
            await on.on.checkpoint()
            await on.done()
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]

    asyncio.run(story())


def test_what_can_not_be_indexed_is_named_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "orders-0").write_bytes(b"no directory")
    wrong = PartitionName("orders", 1)

    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            on.put(STOCK)
            on.put(wrong, frames=b"\xff" * 500)
            await on.on.checkpoint()
            await on.done()
            assert await on.covered(STOCK) == [(0, on.end(STOCK))]
            assert await on.covered(wrong) == []

    asyncio.run(story())
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.split(" error=")[0] for line in said] == [
        f"key index not updated partition={name}" for name in (ORDERS, wrong)
    ]
    assert said[1].endswith(" error=no message begins there")


def test_blocks_found_wrong_are_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            await on.on.checkpoint()
            await on.done()
            await on.indexer.discard(STOCK)  # which has none
            await on.indexer.discard(ORDERS)
            assert await on.covered(ORDERS) == []
            await on.round()
            assert await on.covered(ORDERS) == [(0, on.end(ORDERS))]

    asyncio.run(story())


def test_a_gap_that_a_repair_left_is_covered(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as on:
            on.put(ORDERS)
            index = on.on.store.indexes.of(ORDERS)
            index.publish(IndexUpdate(ORDERS, Offset(index.end + 5000), Extent(Lsn(0), 0, 0, 0)))
            on.indexer._ends = [(ORDERS, index.end)]
            await on.round()
            assert await on.covered(ORDERS) == [(0, index.end)]

    asyncio.run(story())


def test_retention_takes_the_blocks_along(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path, bytes_kept=2 * 4096) as on:
            on.put(ORDERS)
            await on.on.checkpoint()
            await on.done()
            on.put(ORDERS, 40)
            await on.on.ticks(4)
            await on.done()
            start, covered = on.on.store.indexes.by_name[ORDERS].start, await on.covered(ORDERS)
            assert start > 4000
            assert covered[0][1] > start, "the first block is gone"
            assert covered[-1][1] == on.end(ORDERS)

    asyncio.run(story())
