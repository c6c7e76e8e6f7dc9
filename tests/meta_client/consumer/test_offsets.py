"""Progress: what changed is stored once, a failure forgets nothing, nothing of a lost partition gets through."""

from collections.abc import Sequence

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig, check_bytes_max, check_group
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker, ZooKeeperOffsetStore
from meta_client.errors import InvalidGroup
from zk.tree.nodes import Partition

A, B = Partition(0, 0), Partition(0, 1)


class ListStore:
    """Remembers every commit; raises while it is broken."""

    def __init__(self) -> None:
        self.commits: list[list[OffsetEntry]] = []
        self.is_broken = False

    def load(self, topic: str, partition: Partition) -> int | None:
        del topic, partition
        return None

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        if self.is_broken:
            raise OSError("the database is down")
        self.commits.append(list(entries))


def test_only_progress_is_stored_and_only_once() -> None:
    tracker, store = OffsetTracker(), ListStore()
    tracker.own("orders", A)
    tracker.own("orders", B)
    assert tracker.commit(store) == 0
    tracker.advance(OffsetEntry("orders", B, 25, 100_000))
    tracker.advance(OffsetEntry("orders", B, 50, 100_001))
    assert tracker.commit(store) == 1
    assert tracker.commit(store) == 0
    assert store.commits == [[OffsetEntry("orders", B, 50, 100_001)]]


def test_a_failed_commit_is_tried_again_with_what_came_since() -> None:
    tracker, store = OffsetTracker(), ListStore()
    tracker.own("orders", A)
    tracker.own("orders", B)
    tracker.advance(OffsetEntry("orders", A, 25))
    store.is_broken = True
    with pytest.raises(OSError, match="down"):
        tracker.commit(store)
    store.is_broken = False
    tracker.advance(OffsetEntry("orders", B, 7))
    tracker.commit(store)
    assert store.commits == [[OffsetEntry("orders", A, 25), OffsetEntry("orders", B, 7)]]


def test_a_reset_stays_one_until_it_is_stored() -> None:
    tracker, store = OffsetTracker(), ListStore()
    tracker.own("orders", A)
    tracker.advance(OffsetEntry("orders", A, 9000))
    tracker.advance(OffsetEntry("orders", A, 50, is_reset=True))
    tracker.advance(OffsetEntry("orders", A, 75, 100_000))
    assert tracker.is_resetting(("orders", A))
    store.is_broken = True
    with pytest.raises(OSError, match="down"):
        tracker.commit(store)
    assert tracker.is_resetting(("orders", A))
    store.is_broken = False
    tracker.commit(store)
    assert not tracker.is_resetting(("orders", A))
    tracker.advance(OffsetEntry("orders", A, 100, 100_001))
    tracker.commit(store)
    assert store.commits == [
        [OffsetEntry("orders", A, 75, 100_000, is_reset=True)],
        [OffsetEntry("orders", A, 100, 100_001)],
    ]
    tracker.advance(OffsetEntry("orders", A, 0, is_reset=True))
    tracker.disown([("orders", A)])
    assert not tracker.is_resetting(("orders", A))


def test_what_is_not_ours_any_more_is_not_stored() -> None:
    tracker, store = OffsetTracker(), ListStore()
    tracker.own("orders", A)
    tracker.advance(OffsetEntry("orders", A, 25))
    tracker.disown([("orders", A)])
    tracker.advance(OffsetEntry("orders", A, 50))  # a listener that returned late
    assert tracker.commit(store) == 0


def test_zookeeper_keeps_them_as_genuine_clients_do(client: Client) -> None:
    store = ZooKeeperOffsetStore(client.session, "g1")
    assert store.load("meta-test", A) is None
    store.commit([OffsetEntry("meta-test", A, 25, 100_000), OffsetEntry("meta-test", B, 0)])
    assert store.load("meta-test", A) == 25
    nodes = client.session.read_many([f"/meta/consumers/g1/offsets/meta-test/{name}" for name in (A, B)])
    assert [node.data for node in nodes.values()] == [b"100000-25", b"-1-0"]


@pytest.mark.scenario("A10", "A11")
@pytest.mark.parametrize("group", ["~!@#$%", "a.b", "a b", "", " ", "a/b", "a\tb", "a\x00b"])
def test_group_names_that_are_refused(group: str) -> None:
    with pytest.raises(InvalidGroup, match=r"Blank group|Group name has invalid character"):
        check_group(group)


def test_group_names_that_are_taken() -> None:
    assert check_group("meta-slave_group@7") == "meta-slave_group@7"


@pytest.mark.parametrize(
    "wrong", [{"strategy": "best"}, {"runners": 0}, {"start": -1}, {"backoff_s_max": 0}, {"commit_period_s": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ConsumerConfig(**wrong)  # type: ignore[arg-type]  # one wrong setting at a time
    with pytest.raises(ValueError, match="max_bytes"):
        check_bytes_max(0)
