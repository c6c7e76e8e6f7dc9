"""A rejected message is stored before the offset passes it, whatever the disk does."""

from collections.abc import Callable
from random import Random

import pytest

from journal.errors import JournalError
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import ErrorPolicy
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import BatchDelivery, MessageDelivery
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from zk.tree.nodes import Partition

PARTITION = Partition(0, 0)
NO_FILTER = MessageFilter(None, None)
COUNT = 24


def messages(first: int, count: int) -> list[ReceivedMessage]:
    return [
        ReceivedMessage("orders", PARTITION, n * 100, n, 0, None, b"%d" % n, n * 100 + 100)
        for n in range(first, first + count)
    ]


def by_message(taken: set[int], policy: ErrorPolicy) -> Delivery:
    def on_message(message: ReceivedMessage) -> None:
        if message.message_id % 3 == 0:
            raise ValueError("bad")
        taken.add(message.message_id)

    return MessageDelivery(on_message, policy, NO_FILTER, None)


def by_batch(taken: set[int], policy: ErrorPolicy) -> Delivery:
    def on_batch(batch: Batch) -> None:
        if any(message.message_id % 3 == 0 for message in batch.messages):
            raise ValueError("bad")
        taken.update(message.message_id for message in batch.messages)

    return BatchDelivery(on_batch, policy, NO_FILTER, None)


@pytest.mark.parametrize("form", [by_message, by_batch])
@pytest.mark.parametrize("cut", [PowerCut.DROPPED, PowerCut.SHUFFLED])
def test_what_the_offset_has_passed_was_taken_or_is_a_dead_letter(
    form: Callable[[set[int], ErrorPolicy], Delivery], cut: PowerCut
) -> None:
    committed = 0
    for fail_at in range(1000):
        storage = FaultyStorage(Random(fail_at), fail_at=fail_at)
        taken: set[int] = set()
        committed = 0
        try:
            store = DeadLetterStore.on(storage, "g", segment_bytes=8192)
            try:
                delivery = form(taken, ErrorPolicy(1, store.add))
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
        found_again = DeadLetterStore.on(storage.after_power_cut(cut, Random(fail_at)), "g", segment_bytes=8192)
        kept = {entry.address.offset // 100 for entry in found_again.entries()}
        found_again.close()
        assert set(range(committed)) <= taken | kept
        assert not taken & kept
        if not storage.fault_fired:
            break
    assert committed == COUNT
    assert fail_at > 15
