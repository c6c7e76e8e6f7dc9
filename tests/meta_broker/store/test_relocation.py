"""A broker's store with branches in doubt for long: retention goes on, and they commit whatever they had put."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from journal.state.live_branch import LiveBranch
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.sections import RetentionSection
from meta_broker.store.message_store import MessageStore
from tests.fixtures.loops import until
from tests.meta_broker.store.test_retention import (
    MESSAGE,
    ORDERS,
    SEGMENT_BYTES,
    STOCK,
    Clock,
    Stage,
    judged,
    message,
    stage,
)

BY_BYTES = RetentionSection(bytes=2 * SEGMENT_BYTES, when=0.1)
ROUNDS = 6


def is_relocating() -> bool:
    """Return whether a task runs beside the test: the job has no more than one."""
    return len(asyncio.all_tasks()) > 1


async def relocate(on: Stage) -> None:
    """Run the broker's tick and the journal's writer until no relocation is due."""
    with ThreadPoolExecutor(1) as worker:
        on.relocation.maybe_begin(worker)
        while is_relocating():
            on.store.journal.wait_flushed(on.store.journal.end)
            on.store.advance()
            await asyncio.sleep(0.001)


def fill(on: Stage, count: int) -> None:
    """Put the given number of unrelated messages, seven to a segment, with one fsync."""
    transactions = on.store.transactions
    for number in range(count - 1):
        result = transactions.put(ORDERS, [message(number)], MESSAGE, 1)
        on.store.high_watermark.run_after(result.lsn, on.store.publish, result.updates)
    on.put(ORDERS, count)


def prepare(on: Stage, name: str, numbers: range) -> LiveBranch:
    transactions = on.store.transactions
    live = transactions.begin(XaKey(Xid.of(name, "mq"), "test"))
    for number in numbers:
        transactions.transactional_put(live, STOCK, [message(number)], MESSAGE, 1)
    transactions.prepare(live)
    return live


def test_retention_passes_a_branch_in_doubt_and_a_restart_still_commits_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            live = prepare(on, "order-1", range(1000, 1005))
            assert live.branch is not None
            for _ in range(ROUNDS):
                fill(on, 60)
                await relocate(on)
                await asyncio.sleep(0.11)
                await on.ticks()
            # Not further behind than the four segments of the default, twice what it holds, and one round.
            behind = on.store.journal.end - live.branch.oldest_lsn
            assert behind < (4 + 2 * 5 + 10) * SEGMENT_BYTES
            assert on.store.journal.start_lsn > live.branch.first_lsn
        assert list(judged(tmp_path)) == []
        async with stage(tmp_path, BY_BYTES) as on:
            (again,) = on.store.transactions.recover()
            on.publish_done(on.store.transactions.commit(again, one_phase=False))
            assert on.read_all(STOCK) == b"".join(map(message, range(1000, 1005)))
        assert list(judged(tmp_path)) == []
        for file in (tmp_path / "index").iterdir():
            file.unlink()
        async with stage(tmp_path, BY_BYTES) as on:
            assert on.read_all(STOCK) == b"".join(map(message, range(1000, 1005)))

    asyncio.run(story())
    carried = [one.getMessage() for one in caplog.records if one.getMessage().startswith("branch relocated")]
    assert len(carried) > 1
    assert "xid=XID:1:6f726465722d31:6d71:test" in carried[0]
    assert "messages=5 bytes=2500" in carried[0]


def test_what_cannot_be_relocated_is_named_once_and_holds_retention_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The branch has an extent that was put when segments were larger."""

    async def story() -> None:
        broker = BrokerSection(segment_bytes=4 * SEGMENT_BYTES)
        config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=broker)
        store = MessageStore.open(config, "test", lambda: None, Clock())
        big = store.transactions.begin(XaKey(Xid.of("order-2", "mq"), "test"))
        store.transactions.transactional_put(big, STOCK, [bytes(2 * SEGMENT_BYTES)], 2 * SEGMENT_BYTES, 1)
        store.transactions.prepare(big)
        store.close()
        async with stage(tmp_path, BY_BYTES) as on:
            for _ in range(2):
                fill(on, 200)
                await relocate(on)
                await asyncio.sleep(0.11)
                await on.ticks()
            (live,) = on.store.transactions.recover()
            assert live.branch is not None
            assert on.store.journal.start_lsn <= live.branch.first_lsn
            assert caplog.text.count("branch not relocated, retention stops at it xid=XID:1:6f726465722d32") == 1
            on.publish_done(on.store.transactions.commit(live, one_phase=False))
            assert on.read_all(STOCK) == bytes(2 * SEGMENT_BYTES)

    asyncio.run(story())


def test_a_stop_waits_for_the_round_under_way_and_begins_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            prepare(on, "order-1", range(3))
            fill(on, 200)
            with ThreadPoolExecutor(1) as worker:
                on.relocation.maybe_begin(worker)
                assert is_relocating()
                await on.relocation.stop()
                assert not is_relocating()
                on.relocation.maybe_begin(worker)
                assert not is_relocating()
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_a_journal_that_stops_ends_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is acknowledged any more: the stop does not wait for it."""

    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            prepare(on, "order-1", range(3))
            fill(on, 200)
            with ThreadPoolExecutor(1) as worker:
                on.relocation.maybe_begin(worker)
                await until(lambda: len(on.store.high_watermark) > 0)
                await on.relocation.stop()
            await asyncio.sleep(0)
            on.store.journal.wait_flushed(on.store.journal.end)
            on.store.advance()  # the round's end, which nobody waits for
            assert not is_relocating()

    asyncio.run(story())


def test_a_branch_that_is_decided_while_it_is_read_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            live = prepare(on, "order-1", range(3))
            fill(on, 200)
            with ThreadPoolExecutor(1) as worker:
                on.relocation.maybe_begin(worker)
                await asyncio.sleep(0)  # the worker reads
                on.publish_done(on.store.transactions.commit(live, one_phase=False))
                await relocate(on)
            assert on.read_all(STOCK) == b"".join(map(message, range(3)))
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_a_corrupt_branch_is_named_and_holds_retention_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            live = prepare(on, "order-1", range(3))
            fill(on, 200)
            assert live.branch is not None
            (extent, *_) = next(iter(live.branch.extents.values()))
            flip(tmp_path, extent.lsn + 3)
            await relocate(on)
            assert caplog.text.count("branch not relocated, retention stops at it xid=XID:1:6f726465722d31") == 1

    asyncio.run(story())


def flip(directory: Path, lsn: int) -> None:
    (path,) = (each for each in directory.glob("*.journal") if 0 <= lsn - int(each.stem) < SEGMENT_BYTES)
    with path.open("r+b") as file:
        file.seek(lsn - int(path.stem))
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
