"""The store of refused messages: what it keeps, what it survives, and that it stays small."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from journal.errors import JournalError, RottenJournal, StorageFailed
from journal.segments import Identity, Segments
from journal.storage import DirectoryStorage
from meta_client.consumer.batch import ReceivedMessage
from meta_client.refused.errors import ForeignStore, StoreFull, StoreInUse
from meta_client.refused.reading import read_group, read_waiting
from meta_client.refused.store import RefusedStore
from meta_client.refused.waiting import ENTRY_BYTES, Place
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from zk.nodes import Partition

SEGMENT_BYTES = 8192
PARTITION = Partition(0, 3)
ERROR = ValueError("no such customer")


def message(number: int, payload: bytes = b"payload", attribute: str | None = None) -> ReceivedMessage:
    return ReceivedMessage("orders", PARTITION, number * 100, number, 0, attribute, payload, number * 100 + 100)


def place(number: int) -> Place:
    return Place("orders", PARTITION, number * 100)


def numbers(store: RefusedStore) -> list[int]:
    return [waiting.place.offset // 100 for waiting in store.waiting()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RefusedStore]:
    opened = RefusedStore.open(tmp_path, "billing")
    yield opened
    opened.close()


def test_a_message_is_kept_as_it_came_with_what_is_known_of_it(tmp_path: Path, store: RefusedStore) -> None:
    store.park(message(1, b"first", "key-1\N{EURO SIGN}"), ERROR)
    store.park(message(2, b""), ERROR)
    store.park(message(1, b"first", "key-1\N{EURO SIGN}"), RuntimeError("it came again after a crash"))
    store.tried(place(1), RuntimeError("still"))
    store.close()
    store.close()
    again = RefusedStore.open(tmp_path, "billing")
    first, second = again.waiting()
    assert (first.record.attempts, first.record.reason) == (1, "RuntimeError('still')")
    assert (second.record.attempts, second.record.reason) == (0, "ValueError('no such customer')")
    assert again.message(place(1)) == message(1, b"first", "key-1\N{EURO SIGN}")._replace(flag=1)
    assert again.message(place(2)) == message(2, b"")
    again.delivered(place(1))
    assert again.drop(place(2))
    assert not again.drop(place(2))
    again.close()
    last = RefusedStore.open(tmp_path, "billing")
    assert last.waiting() == []
    assert last.message(place(1)) is None
    last.close()


def test_a_directory_belongs_to_one_consumer_of_one_group(tmp_path: Path, store: RefusedStore) -> None:
    with pytest.raises(StoreInUse, match="in use by another consumer"):
        RefusedStore.open(tmp_path, "billing")
    store.close()
    with pytest.raises(ForeignStore, match="name another directory"):
        RefusedStore.open(tmp_path, "audit")
    with pytest.raises(ForeignStore, match="too long a name"):
        RefusedStore.open(tmp_path, "x" * 60)
    assert read_group(tmp_path) == "billing"


def test_a_brokers_journal_is_no_store(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    broker = Segments.open(storage, Identity("metaq", 7), SEGMENT_BYTES, writable=True)
    broker.roll()
    broker.close()
    storage.close()
    for use in (lambda: RefusedStore.open(tmp_path, "billing"), lambda: list(read_waiting(tmp_path))):
        with pytest.raises(ForeignStore):
            use()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ForeignStore, match="no journal"):
        read_group(empty)


def test_it_is_read_from_outside_while_it_is_in_use(tmp_path: Path, store: RefusedStore) -> None:
    store.park(message(1), ERROR)
    store.park(message(2, b"x" * 10_000), ERROR)
    store.delivered(place(1))
    store.park(message(3), ERROR)
    assert [(waiting.place, found) for waiting, found in read_waiting(tmp_path)] == [
        (place(2), message(2, b"x" * 10_000)),
        (place(3), message(3)),
    ]


def test_there_is_room_for_so_many_bytes_and_again_when_some_are_gone() -> None:
    store = RefusedStore.on(FaultyStorage(Random(1)), "g", bytes_max=3 * ENTRY_BYTES, segment_bytes=SEGMENT_BYTES)
    store.park(message(1), ERROR)
    store.park(message(2), ERROR)
    with pytest.raises(StoreFull, match="holds 2 refused messages"):
        store.park(message(3), ERROR)
    assert numbers(store) == [1, 2]
    store.drop(place(1))
    store.park(message(3), ERROR)
    assert numbers(store) == [2, 3]
    store.close()


def test_the_files_are_bounded_by_what_waits_and_what_waits_is_carried_forward() -> None:
    storage = FaultyStorage(Random(1))
    store = RefusedStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    for number in range(5):
        store.park(message(number, b"kept" * 200), ERROR)
    store.tried(place(0), ERROR)
    most = 0
    for number in range(5, 300):
        store.park(message(number, b"x" * 500), ERROR)
        store.delivered(place(number))
        most = max(most, len(storage.files))
    store.close()
    assert most <= 8  # 2 * 5 * 2 KiB in 8 KiB segments, three more, and the one in the making
    again = RefusedStore.on(storage.after_power_cut(PowerCut.DROPPED, Random(2)), "g", segment_bytes=SEGMENT_BYTES)
    assert numbers(again) == [0, 1, 2, 3, 4]
    assert again.waiting()[0].record.attempts == 1
    assert again.message(place(4)) == message(4, b"kept" * 200)
    again.close()


def test_a_store_of_nothing_but_waiting_messages_is_not_copied_at_every_step() -> None:
    storage = FaultyStorage(Random(1))
    store = RefusedStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    for number in range(200):
        store.park(message(number, b"x" * 500), ERROR)
    before = store._journal.end
    for number in range(1000, 1200):
        store.park(message(number), ERROR)
        store.delivered(place(number))
    assert store._journal.end - before < 2 * 200 * 2000
    assert len(store.waiting()) == 200
    store.close()


def workload(store: RefusedStore, parked: set[int], settled: set[int]) -> None:
    """Some of everything, compaction included; *parked* grows by what is promised."""
    for number in range(40):
        store.park(message(number, b"x" * 300), ERROR)
        parked.add(number)
        if number % 4:
            settled.add(number)
            store.delivered(place(number))
        else:
            store.tried(place(number), ERROR)


@pytest.mark.parametrize("cut", list(PowerCut))
def test_no_parked_message_is_lost_whichever_storage_call_fails_and_the_power_with_it(cut: PowerCut) -> None:
    for fail_at in range(10_000):
        storage = FaultyStorage(Random(fail_at), fail_at=fail_at)
        parked: set[int] = set()
        settled: set[int] = set()
        try:
            store = RefusedStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
            try:
                workload(store, parked, settled)
            finally:
                store.close()
        except JournalError:
            assert storage.fault_fired
        after = storage.after_power_cut(cut, Random(fail_at))
        found = RefusedStore.on(after, "g", segment_bytes=SEGMENT_BYTES)
        waiting = set(numbers(found))
        assert parked - settled <= waiting <= set(range(40))
        for number in waiting:
            assert found.message(place(number)) == message(number, b"x" * 300)
        found.close()
        if not storage.fault_fired:
            break
    assert fail_at > 50


def test_a_failed_disk_parks_nothing_more() -> None:
    storage = FaultyStorage(Random(1))
    store = RefusedStore.on(storage, "g", segment_bytes=SEGMENT_BYTES)
    storage.fail_at = len(storage.calls)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            store.park(message(1), ERROR)
    with pytest.raises(StorageFailed):
        store.close()


def test_rot_is_refused_not_forgotten(tmp_path: Path) -> None:
    store = RefusedStore.open(tmp_path, "billing")
    for number in range(3):
        store.park(message(number, b"PRECIOUS %d" % number), ERROR)
    store.close()
    (file,) = sorted(tmp_path.glob("*.journal"))
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"PRECIOUS 1")] ^= 1
    file.write_bytes(raw)
    with pytest.raises(RottenJournal):
        RefusedStore.open(tmp_path, "billing")
    listed = read_waiting(tmp_path)
    assert next(listed)[0].place == place(0)
    with pytest.raises(ForeignStore, match="rotten at LSN"):
        next(listed)
    assert file.read_bytes() == bytes(raw)


@pytest.mark.parametrize("text", ["orders", "orders/0-3", "orders@5", "orders/0@5", "/0-3@5", "orders/0-3@-5"])
def test_texts_that_name_no_message(text: str) -> None:
    with pytest.raises(ValueError, match="names no message"):
        Place.parse(text)
    assert Place.parse(str(place(7))) == place(7)
