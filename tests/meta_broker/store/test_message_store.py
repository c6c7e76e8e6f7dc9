"""The store and its high watermark: what others must have first waits, and nobody waits for what never comes."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.state.wall_clock import wall_clock_ms
from journal.wal.high_watermark import LSN_MAX
from journal.wal.storage_file import DirectoryFile
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.store import message_store
from meta_broker.store.checkpoint_job import STOPPING, NoCheckpoint
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.answers import CheckpointTaken
from tests.fixtures.loops import until


def test_a_checkpoint_at_the_high_watermark_is_given_up_when_the_journal_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_fail = threading.Event()

    def failing_sync(file: DirectoryFile) -> None:
        del file
        assert may_fail.wait(60)
        raise StorageFailed("the disk is gone")

    async def story() -> None:
        section = BrokerSection(checkpoint_bytes=1, segment_bytes=4 << 20)
        config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=section)
        store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
        monkeypatch.setattr(DirectoryFile, "sync", failing_sync)
        with ThreadPoolExecutor(1) as worker:
            store.transactions.put(PartitionName("orders", 0), [b"x" * 21], 21, 1)
            store.checkpoints.maybe_begin(worker)
            await until(lambda: len(store.high_watermark) == 1)  # the checkpoint waits there
            may_fail.set()
            with pytest.raises(StorageFailed, match="the disk is gone"):
                await asyncio.to_thread(store.journal.wait_flushed, store.journal.end, 60)
            await asyncio.wait_for(store.stop_jobs(), 60)
        with pytest.raises(StorageFailed, match="the disk is gone"):
            store.advance()
        with pytest.raises(StorageFailed, match="the disk is gone"):
            store.close()

    asyncio.run(story())


def test_what_others_must_have_first_waits_for_them_though_it_is_flushed_here(tmp_path: Path) -> None:
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    orders = PartitionName("orders", 0)
    try:
        store.limit_acknowledged(store.journal.end)
        first, second = (store.transactions.put(orders, [b"x" * 21], 21, 1) for _ in range(2))
        for result in (first, second):
            store.high_watermark.run_after(result.lsn, store.publish, result.updates)
        store.journal.wait_flushed(store.journal.end, 60)
        store.advance()
        assert orders not in store.indexes.by_name
        store.limit_acknowledged(first.lsn)
        store.advance()
        assert store.indexes.by_name[orders].end == 21
        store.limit_acknowledged(Lsn(0))  # what was acknowledged stays so
        store.advance()
        assert store.indexes.by_name[orders].end == 21
        store.limit_acknowledged(LSN_MAX)
        store.advance()
        assert store.indexes.by_name[orders].end == 42
    finally:
        store.close()


def test_a_branch_of_many_extents_is_shown_in_turns_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "RUNS_PER_TURN", 3)
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    orders, ran = PartitionName("orders", 0), list[str]()
    try:
        transaction = store.transactions.begin(XaKey(Xid.of("many", "runs"), "uq"))
        for _ in range(7):
            store.transactions.transactional_put(transaction, orders, [b"x" * 21], 21, 1)
        result = store.transactions.commit(transaction, one_phase=True)
        behind = store.transactions.put(orders, [b"x" * 21], 21, 1)
        store.publish_when_acknowledged(result.lsn, result.updates, ran.append, "branch")
        store.publish_when_acknowledged(behind.lsn, behind.updates, ran.append, "behind")
        store.journal.wait_flushed(store.journal.end, 60)
        ends = []
        while not store.advance():
            ends.append(store.indexes.by_name[orders].end // 21)
            assert ran == []
        assert ends == [3, 6, 7]
        assert ran == ["branch", "behind"]
        assert store.indexes.by_name[orders].end // 21 == 8
    finally:
        store.close()


def test_the_last_checkpoint_holds_what_was_to_be_shown_in_later_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "RUNS_PER_TURN", 3)
    config, orders = BrokerConfig(data=tmp_path, broker_id=0, port=0), PartitionName("orders", 0)
    for _ in range(2):
        store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
        try:
            if orders not in store.indexes.by_name:
                transaction = store.transactions.begin(XaKey(Xid.of("many", "runs"), "uq"))
                for _ in range(7):
                    store.transactions.transactional_put(transaction, orders, [b"x" * 21], 21, 1)
                result = store.transactions.commit(transaction, one_phase=True)
                store.publish_when_acknowledged(result.lsn, result.updates, lambda: None)
                store.journal.wait_flushed(store.journal.end, 60)
                assert not store.advance()
                store.last_checkpoint()
            assert store.indexes.by_name[orders].end == 7 * 21
            assert not store.indexes.damaged
        finally:
            store.close()


def test_who_waits_for_a_checkpoint_at_a_stop_is_told_so(tmp_path: Path) -> None:
    """One that was asked for, and one that waits for the high watermark, whose action comes when nobody wants it."""

    async def story() -> None:
        told: list[CheckpointTaken | NoCheckpoint] = []
        config = BrokerConfig(data=tmp_path, broker_id=0, port=0)
        store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
        try:
            store.limit_acknowledged(store.journal.end)
            store.transactions.put(PartitionName("orders", 0), [b"x" * 21], 21, 1)
            with ThreadPoolExecutor(1) as worker:
                store.checkpoints.request(told.append)
                store.checkpoints.maybe_begin(worker)
                await until(lambda: len(store.high_watermark) == 1)
                store.checkpoints.request(told.append)
                await store.stop_jobs()
            assert told == [NoCheckpoint(STOPPING)] * 2
            store.journal.wait_flushed(store.journal.end, 60)
            store.limit_acknowledged(LSN_MAX)
            assert store.advance()
        finally:
            store.close()

    asyncio.run(story())


def test_acknowledgements_that_are_suspended_come_later(tmp_path: Path) -> None:
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    try:
        store.suspend_acks()
        put = store.transactions.put(PartitionName("orders", 0), [b"x" * 21], 21, 1)
        ran: list[str] = []
        store.high_watermark.run_after(put.lsn, ran.append, "acknowledged")
        store.journal.wait_flushed(store.journal.end, 60)
        assert store.advance()
        assert ran == []
        store.resume_acks()
        assert store.advance()
        assert ran == ["acknowledged"]
    finally:
        store.close()
