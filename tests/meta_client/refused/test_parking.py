"""A message that is refused is parked before the offset passes it, whatever the disk does."""

from collections.abc import Callable
from random import Random

import pytest

from journal.errors import JournalError
from meta_client.consumer.batch import Batch, ReceivedMessage
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.listening import BatchDelivery, MessageDelivery
from meta_client.consumer.refusing import RetryPolicy
from meta_client.consumer.sifting import Sieve
from meta_client.refused.store import RefusedStore
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from zk.nodes import Partition

PARTITION = Partition(0, 0)
SIEVE = Sieve(None, None)
COUNT = 24


def messages(first: int, count: int) -> list[ReceivedMessage]:
    return [
        ReceivedMessage("orders", PARTITION, n * 100, n, 0, None, b"%d" % n, n * 100 + 100)
        for n in range(first, first + count)
    ]


def by_message(taken: set[int], policy: RetryPolicy) -> Delivery:
    def on_message(message: ReceivedMessage) -> None:
        if message.message_id % 3 == 0:
            raise ValueError("bad")
        taken.add(message.message_id)

    return MessageDelivery(on_message, policy, SIEVE, None)


def by_batch(taken: set[int], policy: RetryPolicy) -> Delivery:
    def on_batch(batch: Batch) -> None:
        if any(message.message_id % 3 == 0 for message in batch.messages):
            raise ValueError("bad")
        taken.update(message.message_id for message in batch.messages)

    return BatchDelivery(on_batch, policy, SIEVE, None)


@pytest.mark.parametrize("form", [by_message, by_batch])
@pytest.mark.parametrize("cut", [PowerCut.DROPPED, PowerCut.SHUFFLED])
def test_what_the_offset_has_passed_was_taken_or_is_parked(
    form: Callable[[set[int], RetryPolicy], Delivery], cut: PowerCut
) -> None:
    committed = 0
    for fail_at in range(1000):
        storage = FaultyStorage(Random(fail_at), fail_at=fail_at)
        taken: set[int] = set()
        committed = 0
        try:
            store = RefusedStore.on(storage, "g", segment_bytes=8192)
            try:
                delivery = form(taken, RetryPolicy(1, store.park))
                for _ in range(4 * COUNT):
                    if committed == COUNT:
                        break
                    found = messages(committed, min(5, COUNT - committed))
                    outcome = delivery.deliver(
                        Batch("orders", PARTITION, found[0].offset, found[-1].next_offset, found)
                    )
                    if outcome.consumed is not None:
                        committed = outcome.consumed.offset // 100
                    assert outcome.next_offset == committed * 100
            finally:
                store.close()
        except JournalError:
            assert storage.fault_fired
        found_again = RefusedStore.on(storage.after_power_cut(cut, Random(fail_at)), "g", segment_bytes=8192)
        parked = {waiting.place.offset // 100 for waiting in found_again.waiting()}
        found_again.close()
        assert set(range(committed)) <= taken | parked
        assert not taken & parked
        if not storage.fault_fired:
            break
    assert committed == COUNT
    assert fail_at > 15
