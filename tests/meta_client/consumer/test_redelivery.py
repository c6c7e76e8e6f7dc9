"""Redelivery: what keeps one dead letter back keeps back no other, and ends no thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from journal.errors import StorageFailed
from meta_client.consumer.assignments import Assignments
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.redelivery import Redelivery
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile
from tests.meta_client.consumer.dead_letters.test_store import ERROR, message, numbers

PATIENCE_S = 30.0


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise LookupError("the session of what it shows is closed")


@contextmanager
def redelivering(store: DeadLetterStore, listener: Callable[[ReceivedMessage], object]) -> Iterator[None]:
    assignments = Assignments("g", lambda: True, threading.Condition())
    redelivery = Redelivery(store, assignments, {"orders": listener}, 0.02, "g")
    redelivery.start()
    try:
        yield
    finally:
        redelivery.close()


def test_a_listener_whose_error_has_no_text_gets_the_message_again(tmp_path: Path) -> None:
    store = DeadLetterStore.open(tmp_path, "g")
    store.add(message(1), Unprintable())
    taken, tries = threading.Event(), iter([Unprintable(), Unprintable()])

    def listener(message: ReceivedMessage) -> None:
        if (error := next(tries, None)) is not None:
            raise error
        taken.set()

    assert store.entries()[0].record.reason == "Unprintable without a text: its repr() raises"
    with redelivering(store, listener):
        assert taken.wait(PATIENCE_S)
    store.close()


@pytest.mark.parametrize("damage", [slice(0, 1), slice(3, 4), slice(4, 8), slice(0, 27)])  # the last: zeros
def test_a_dead_letter_that_reads_badly_keeps_back_no_other(damage: slice) -> None:
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=8192)
    for number in (1, 2, 3):
        store.add(message(number), ERROR)
    entry = store.entries()[0]
    base, _ = store._journal.segments.locate(entry.body_lsn)
    (content,) = storage.files.values()
    assert isinstance(content, MemoryFile)
    frame = slice(entry.body_lsn - base, entry.body_lsn - base + entry.body_bytes)
    body = content.cached[frame]
    body[damage] = bytes(len(body[damage])) if damage.stop == len(body) else bytes(it ^ 1 for it in body[damage])
    content.cached[frame] = body
    offered: list[int] = []
    done = threading.Event()

    def listener(message: ReceivedMessage) -> None:
        offered.append(message.message_id)
        if len(offered) == 2:
            done.set()

    with redelivering(store, listener):
        assert done.wait(PATIENCE_S)
    assert offered == [2, 3]
    assert numbers(store) == [1]
    store.close()


def test_a_store_that_can_record_no_delivery_offers_nothing() -> None:
    storage = FaultyStorage(Random(1))
    store = DeadLetterStore.on(storage, "g", segment_bytes=8192)
    store.add(message(1), ERROR)
    storage.fail_at = len(storage.calls)
    with pytest.raises(StorageFailed):
        store.add(message(2), ERROR)
    offered: list[ReceivedMessage] = []
    assignments = Assignments("g", lambda: True, threading.Condition())
    Redelivery(store, assignments, {"orders": offered.append}, 1.0, "g")._offer_all()
    assert offered == [], "it would come again at every period"
    with pytest.raises(StorageFailed):
        store.close()


def test_what_nobody_listens_to_stays_and_so_does_all_once_the_consumer_is_closed() -> None:
    store = DeadLetterStore.on(FaultyStorage(Random(1)), "g", segment_bytes=8192)
    store.add(message(1)._replace(topic="stock"), ERROR)
    store.add(message(2), ERROR)
    offered: list[int] = []
    assignments = Assignments("g", lambda: True, threading.Condition())
    redelivery = Redelivery(store, assignments, {"orders": lambda it: offered.append(it.message_id)}, 1.0, "g")
    redelivery._offer_all()
    assert offered == [2]
    assert [entry.address.topic for entry in store.entries()] == ["stock"]
    store.add(message(3), ERROR)
    assignments.close()
    redelivery._offer_all()
    assert (offered, numbers(store)) == ([2], [1, 3])
    store.close()


def test_a_close_during_a_round_ends_it_after_the_message() -> None:
    store = DeadLetterStore.on(FaultyStorage(Random(1)), "g", segment_bytes=8192)
    for number in (1, 2):
        store.add(message(number), ERROR)
    offered: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        offered.append(message.message_id)
        redelivery.close()

    redelivery = Redelivery(
        store, Assignments("g", lambda: True, threading.Condition()), {"orders": listener}, 1.0, "g"
    )
    redelivery._offer_all()
    assert (offered, numbers(store)) == ([1], [2])
    store.close()


class Late(threading.Event):
    """An event whose clear() takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_clearing, self.may_clear = threading.Event(), threading.Event()

    def clear(self) -> None:
        self.is_clearing.set()
        assert self.may_clear.wait(PATIENCE_S)
        super().clear()


def test_a_close_in_the_moment_before_a_round_ends_the_thread() -> None:
    store = DeadLetterStore.on(FaultyStorage(Random(1)), "g", segment_bytes=8192)
    redelivery = Redelivery(store, Assignments("g", lambda: True, threading.Condition()), {}, PATIENCE_S, "g")
    redelivery._wake = late = Late()
    redelivery.start()
    redelivery.now()
    assert late.is_clearing.wait(PATIENCE_S)
    closing = threading.Thread(target=redelivery.close)
    closing.start()
    while not redelivery._is_closed:
        time.sleep(0.001)
    late.may_clear.set()
    closing.join(PATIENCE_S / 2)
    assert not closing.is_alive(), "it waits for the next round"
    store.close()
