"""A raised epoch is durable before anybody writes under it; under a refused one nothing is written at all."""

import contextlib
import itertools
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.record import PartitionName
from journal.state.recovery import Recovered
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.open_journal import JournalConfig
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import IDENTITY, SEGMENT_BYTES, open_store, xa

ORDERS = PartitionName("orders", 0)


class Superseded(Exception):
    pass


def left_behind() -> FaultyStorage:
    """A message, a branch in doubt and an active one."""
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    store.put(ORDERS, [b"abc"], 3, 1)
    promised, active = store.begin(xa("promised")), store.begin(xa("active"))
    store.transactional_put(promised, ORDERS, [b"de"], 2, 1)
    store.transactional_put(active, ORDERS, [b"f"], 1, 1)
    store.prepare(promised)
    store.close()
    return storage


def raised_to(storage: FaultyStorage, epoch: int, seen: list[int] | None = None) -> JournalTransactionStore:
    def tell(recovered: Recovered) -> int:
        if seen is not None:
            seen.append(recovered.state.epoch)
        return epoch

    config = JournalConfig(segment_bytes=SEGMENT_BYTES)
    return JournalTransactionStore.open(storage, IDENTITY, config, version="test", epoch=tell)


@pytest.mark.parametrize("cut", PowerCut)
def test_a_raised_epoch_is_durable_when_open_returns(cut: PowerCut) -> None:
    storage, seen = left_behind(), list[int]()
    store = raised_to(storage, 7, seen)
    assert seen == [1]
    assert [found.key for found in store.recover()] == [xa("promised")]
    again = open_store(storage.after_power_cut(cut, Random(1)))
    with contextlib.suppress(StorageFailed):
        store.close()  # its power is off
    assert (again.state.epoch, again.journal.epoch) == (7, 7)
    assert [found.key for found in again.recover()] == [xa("promised")]
    assert again.state.end_of(ORDERS) == 3
    again.close()


@pytest.mark.parametrize("cut", PowerCut)
def test_a_power_cut_in_the_midst_leaves_the_old_epoch_or_the_new_one(cut: PowerCut) -> None:
    for fail_at in itertools.count():
        storage = left_behind()
        storage.fail_at = len(storage.calls) + fail_at
        with contextlib.suppress(StorageFailed):
            raised_to(storage, 7).close()
        again = open_store(storage.after_power_cut(cut, Random(fail_at)))
        assert again.state.epoch in ((1, 7) if storage.fault_fired else (7,))
        assert [found.key for found in again.recover()] == [xa("promised")]
        again.close()
        if not storage.fault_fired:
            break


def test_a_refused_open_has_changed_nothing() -> None:
    storage = left_behind()
    before = {name: bytes(file.cached) for name, file in storage.files.items()}

    def refuse(recovered: Recovered) -> int:
        raise Superseded

    with pytest.raises(Superseded):
        JournalTransactionStore.open(
            storage, IDENTITY, JournalConfig(segment_bytes=SEGMENT_BYTES), version="test", epoch=refuse
        )
    assert {name: bytes(file.cached) for name, file in storage.files.items()} == before
