"""The dead-letter store: what it keeps, what it survives, and that it stays small."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from random import Random

import pytest

from journal.errors import CorruptJournal, JournalError, StorageFailed
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage
from meta_client.consumer.dead_letters.index import ENTRY_BYTES, MessageAddress
from meta_client.consumer.dead_letters.reading import read_dead_letters, read_group
from meta_client.consumer.dead_letters.store import DeadLetterStore, ForeignStore, OffsetTaken, StoreFull, StoreInUse
from meta_client.consumer.messages.received_message import ReceivedMessage, TracedMessage
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from zk.tree.nodes import Partition

SEGMENT_BYTES = 8192
PARTITION = Partition(0, 3)
ERROR = ValueError("no such customer")


def message(number: int, payload: bytes = b"payload", attribute: str | None = None) -> ReceivedMessage:
    return ReceivedMessage("orders", PARTITION, number * 100, number, 0, attribute, payload, number * 100 + 100)


def address(number: int) -> MessageAddress:
    return MessageAddress("orders", PARTITION, number * 100)


def numbers(store: DeadLetterStore) -> list[int]:
    return [entry.address.offset // 100 for entry in store.entries()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeadLetterStore]:
    opened = DeadLetterStore.open(tmp_path, "billing")
    yield opened
    opened.close()


def test_a_message_is_kept_as_it_came_with_what_is_known_of_it(tmp_path: Path, store: DeadLetterStore) -> None:
    store.add(message(1, b"first", "key-1\N{EURO SIGN}"), ERROR)
    store.add(message(2, b""), ERROR)
    store.add(message(1, b"first", "key-1\N{EURO SIGN}"), RuntimeError("it came again after a crash"))
    store.tried(address(1), RuntimeError("still"))
    store.close()
    store.close()
    again = DeadLetterStore.open(tmp_path, "billing")
    first, second = again.entries()
    assert (first.record.attempts, first.record.reason) == (1, "RuntimeError('still')")
    assert (second.record.attempts, second.record.reason) == (0, "ValueError('no such customer')")
    assert again.message(address(1)) == message(1, b"first", "key-1\N{EURO SIGN}")._replace(flag=1)
    assert again.message(address(2)) == message(2, b"")
    again.delivered(address(1))
    assert again.drop(address(2))
    assert not again.drop(address(2))
    again.close()
    last = DeadLetterStore.open(tmp_path, "billing")
    assert last.entries() == []
    assert last.message(address(1)) is None
    last.close()


def test_a_message_in_the_place_of_one_that_its_broker_lost_is_not_taken_for_it(store: DeadLetterStore) -> None:
    store.add(message(1, b"lost in a promotion"), ERROR)
    another = message(1, b"another")._replace(message_id=7)
    with pytest.raises(OffsetTaken, match=r"another message of orders/0-3@100, id 1"):
        store.add(another, ERROR)
    store.delivered(address(1))
    store.add(another, ERROR)
    assert store.message(address(1)) == another


def test_a_directory_belongs_to_one_consumer_of_one_group(tmp_path: Path, store: DeadLetterStore) -> None:
    with pytest.raises(StoreInUse, match="in use by another consumer"):
        DeadLetterStore.open(tmp_path, "billing")
    store.close()
    with pytest.raises(ForeignStore, match="name another directory"):
        DeadLetterStore.open(tmp_path, "audit")
    with pytest.raises(ForeignStore, match="too long a name"):
        DeadLetterStore.open(tmp_path, "x" * 60)
    assert read_group(tmp_path) == "billing"


def test_a_brokers_journal_is_no_store(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    broker = Segments.open(storage, JournalIdentity("metaq", 7), SEGMENT_BYTES, writable=True)
    broker.roll()
    broker.close()
    storage.close()
    for use in (lambda: DeadLetterStore.open(tmp_path, "billing"), lambda: list(read_dead_letters(tmp_path))):
        with pytest.raises(ForeignStore):
            use()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ForeignStore, match="no journal"):
        read_group(empty)


def test_it_is_read_from_outside_while_it_is_in_use(tmp_path: Path, store: DeadLetterStore) -> None:
    store.add(message(1), ERROR)
    store.add(message(2, b"x" * 10_000), ERROR)
    store.delivered(address(1))
    store.add(message(3), ERROR)
    assert [(entry.address, found) for entry, found in read_dead_letters(tmp_path)] == [
        (address(2), message(2, b"x" * 10_000)),
        (address(3), message(3)),
    ]


def test_there_is_room_for_so_many_bytes_and_again_when_some_are_gone() -> None:
    store = DeadLetterStore.on(FaultyStorage(Random(1)), "g", bytes_max=3 * ENTRY_BYTES, segment_bytes=SEGMENT_BYTES)
    store.add(message(1), ERROR)
    store.add(message(2), ERROR)
    with pytest.raises(StoreFull, match="holds 2 dead letters"):
        store.add(message(3), ERROR)
    assert numbers(store) == [1, 2]
    store.drop(address(1))
    store.add(message(3), ERROR)
    assert numbers(store) == [2, 3]
    store.close()


def test_the_files_are_bounded_by_what_waits_and_what_waits_is_copied_forward() -> None:
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    for number in range(5):
        store.add(message(number, b"kept" * 200), ERROR)
    store.tried(address(0), ERROR)
    most = 0
    for number in range(5, 300):
        store.add(message(number, b"x" * 500), ERROR)
        store.delivered(address(number))
        most = max(most, len(storage.files))
    store.close()
    assert most <= 8  # 2 * 5 * 2 KiB in 8 KiB segments, three more, and the one in the making
    again = DeadLetterStore.on(storage.after_power_cut(PowerCut.DROPPED, Random(2)), "g", segment_bytes=SEGMENT_BYTES)
    assert numbers(again) == [0, 1, 2, 3, 4]
    assert again.entries()[0].record.attempts == 1
    assert again.message(address(4)) == message(4, b"kept" * 200)
    again.close()


def test_a_store_of_nothing_but_waiting_messages_is_not_copied_at_every_step() -> None:
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    for number in range(200):
        store.add(message(number, b"x" * 500), ERROR)
    before = store._journal.end
    for number in range(1000, 1200):
        store.add(message(number), ERROR)
        store.delivered(address(number))
    assert store._journal.end - before < 2 * 200 * 2000
    assert len(store.entries()) == 200
    store.close()


@pytest.mark.parametrize("is_compacted", [False, True])
def test_what_is_queued_for_the_disk_is_read_and_copied_forward_as_it_came(is_compacted: bool) -> None:
    """Unwritten, a frame reads as zeros, which are empty messages with the right checksum."""
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    for number in range(10, 30):
        store.add(message(number, b"x" * 2048), ERROR)
    storage.hold()
    with ThreadPoolExecutor(3) as pool:
        adding = [pool.submit(store.add, message(1), ERROR)]
        storage.wait_blocked()  # behind the write of the first
        adding.append(pool.submit(store.add, message(2), ERROR))
        while len(store.entries()) < 22:
            time.sleep(0.001)

        def read() -> ReceivedMessage | None:
            for number in range(10, 30 * is_compacted):
                store.delivered(address(number))
            return store.message(address(2))

        reading = pool.submit(read)
        is_early = bool(wait([reading], 0.1).done)
        storage.let_go()
        assert reading.result(60) == message(2)
        assert not is_early
        for added in adding:
            added.result(60)
    assert (len(storage.files) < 5) is is_compacted
    store.close()


def workload(store: DeadLetterStore, added: set[int], settled: set[int]) -> None:
    """Some of everything, compaction included; *added* grows by what is promised."""
    for number in range(40):
        store.add(message(number, b"x" * 300), ERROR)
        added.add(number)
        if number % 4:
            settled.add(number)
            store.delivered(address(number))
        else:
            store.tried(address(number), ERROR)


@pytest.mark.parametrize("cut", list(PowerCut))
def test_no_dead_letter_is_lost_whichever_storage_call_fails_and_the_power_with_it(cut: PowerCut) -> None:
    for fail_at in range(10_000):
        storage = FaultyStorage(Random(fail_at), fail_at=fail_at)
        added: set[int] = set()
        settled: set[int] = set()
        try:
            store = DeadLetterStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
            try:
                workload(store, added, settled)
            finally:
                store.close()
        except JournalError:
            assert storage.fault_fired
        after = storage.after_power_cut(cut, Random(fail_at))
        found = DeadLetterStore.on(after, "g", segment_bytes=SEGMENT_BYTES)
        waiting = set(numbers(found))
        assert added - settled <= waiting <= set(range(40))
        for number in waiting:
            assert found.message(address(number)) == message(number, b"x" * 300)
        found.close()
        if not storage.fault_fired:
            break
    assert fail_at > 50


def test_a_failed_disk_stores_nothing_more() -> None:
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    storage.fail_at = len(storage.calls)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            store.add(message(1), ERROR)
    with pytest.raises(StorageFailed):
        store.close()


def test_corruption_is_refused_not_forgotten(tmp_path: Path) -> None:
    store = DeadLetterStore.open(tmp_path, "billing")
    for number in range(3):
        store.add(message(number, b"PRECIOUS %d" % number), ERROR)
    store.close()
    (file,) = sorted(tmp_path.glob("*.journal"))
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"PRECIOUS 1")] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CorruptJournal):
        DeadLetterStore.open(tmp_path, "billing")
    listed = read_dead_letters(tmp_path)
    assert next(listed)[0].address == address(0)
    with pytest.raises(ForeignStore, match="corrupt at LSN"):
        next(listed)
    assert file.read_bytes() == bytes(raw)


@pytest.mark.parametrize("text", ["orders", "orders/0-3", "orders@5", "orders/0@5", "/0-3@5", "orders/0-3@-5"])
def test_texts_that_name_no_message(text: str) -> None:
    with pytest.raises(ValueError, match="names no message"):
        MessageAddress.parse(text)
    assert MessageAddress.parse(str(address(7))) == address(7)


def test_the_trace_of_a_message_is_kept(tmp_path: Path, store: DeadLetterStore) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for number, attribute in ((1, "key-1"), (2, None)):
        store.add(TracedMessage.of(message(number, b"first", attribute), parent), ERROR)
    store.close()
    again = DeadLetterStore.open(tmp_path, "billing")
    for number, attribute in ((1, "key-1"), (2, None)):
        found = again.message(address(number))
        assert found is not None
        assert (found.attribute, found.traceparent) == (attribute, parent)
    again.close()
