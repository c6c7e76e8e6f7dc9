"""Offsets that follow a restoration, and the findings before it."""

import msgspec
import pytest

from journal.backup.manifest import Manifest
from journal.records.record import PartitionName
from meta_broker.replication.promotion.promotion_check import ClusterView, Severity
from meta_broker.restoring.restore_check import GROUPS_TOLD, ArchiveEnd, RestoreFacts, beyond_end, check_restore
from meta_broker.restoring.skipped_offsets import (
    BYTES_MIN,
    BYTES_PER_S_MAX,
    OFFSET_MAX,
    OffsetsUnknown,
    bytes_to_skip,
    ends_after,
)
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

NOW_MS = 1_700_000_000_000
ORDERS, STOCK, NEW = PartitionName("orders", 0), PartitionName("stock", 1), PartitionName("new", 0)
MANIFEST = Manifest(
    format=1,
    version="test",
    cluster="metaq",
    broker_id=3,
    source="/data",
    time_ms=NOW_MS,
    last_ms=NOW_MS,
    start=128,
    end=10_000,
    epoch=2,
    incarnation=5,
    records=7,
    in_doubt=0,
    files=(),
)
DAY_MS = 86_400_000


def position(end: int, epoch: int = 2, incarnation: int = 5) -> JournalPosition:
    return JournalPosition(epoch=epoch, incarnation=incarnation, end=end, directory="/d", host="h")


def test_the_time_since_the_back_up_bounds_the_offsets_that_were_given_out() -> None:
    assert bytes_to_skip(MANIFEST, NOW_MS, None, 3) == BYTES_MIN
    assert bytes_to_skip(MANIFEST, NOW_MS + DAY_MS, None, 3) == 86_400 * BYTES_PER_S_MAX + BYTES_MIN
    assert bytes_to_skip(MANIFEST, NOW_MS, position(1 << 50), 3) > 1 << 50
    assert bytes_to_skip(MANIFEST, NOW_MS, position(9_000, epoch=4), 5) == 3 * BYTES_MIN, "restored before"
    late = msgspec.structs.replace(MANIFEST, last_ms=NOW_MS + 5000)
    with pytest.raises(OffsetsUnknown, match="in 5 s from now: correct it"):
        bytes_to_skip(late, NOW_MS, None, 3)


def test_every_partition_that_may_exist_goes_on_beyond_all_that_is_known() -> None:
    ends = ends_after({ORDERS: 100, STOCK: 0}, [NEW, ORDERS], {STOCK: 2 * BYTES_MIN}, 5 * BYTES_MIN)
    assert ends == {ORDERS: 100 + 5 * BYTES_MIN, STOCK: 5 * BYTES_MIN, NEW: 5 * BYTES_MIN}
    assert ends_after({}, [], {STOCK: 7 * BYTES_MIN}, BYTES_MIN) == {STOCK: 8 * BYTES_MIN}
    with pytest.raises(OffsetsUnknown, match="orders-0 would go on at offset"):
        ends_after({ORDERS: OFFSET_MAX}, [], {}, 1)


def facts(**changes: object) -> RestoreFacts:
    known: dict[str, object] = {
        "manifest": MANIFEST,
        "in_doubt": [],
        "cluster": ClusterView(),
        "position": None,
        "beyond": [],
        "has_wildcards": False,
    }
    return RestoreFacts(**(known | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "severity", "text"),
    [
        (None, Severity.RISK, "without ZooKeeper it is unknown"),
        (ClusterView(master="meta://m:1"), Severity.STOP, "a master of broker 3 is registered at meta://m:1"),
        (ClusterView(slaves={2: "meta://s:1"}), Severity.RISK, "slave 2 may have more"),
        (ClusterView(node=ReplicationNode(epoch=2, in_sync=(4,))), Severity.RISK, "slave 4 may have more"),
    ],
)
def test_what_may_have_more_is_a_risk_and_a_master_stops_it(
    cluster: ClusterView | None, severity: Severity, text: str
) -> None:
    assert any(one.severity is severity and text in one.text for one in check_restore(facts(cluster=cluster)))


def test_an_archive_that_goes_beyond_the_back_up_stops_it() -> None:
    def found(archive: ArchiveEnd) -> list[tuple[Severity, str]]:
        return [(one.severity, one.text) for one in check_restore(facts(archive=archive)) if "/a" in one.text]

    assert found(ArchiveEnd("/a", MANIFEST.end)) == []
    ((severity, text),) = found(ArchiveEnd("/a", MANIFEST.end + 1))
    assert severity is Severity.STOP
    assert "name a new place in [retention] archive" in text
    ((severity, text),) = found(ArchiveEnd("/a", unknown="/a/manifest.jsonl: cut off"))
    assert severity is Severity.RISK
    assert text.startswith("/a/manifest.jsonl: cut off")


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (None, "how much that is, ZooKeeper does not say"),
        (position(10_500), "500 bytes of the journal or more, up to LSN 10500, last in /d on h"),
        (position(9_000), "ZooKeeper knows of nothing: it last read LSN 9000"),
        (position(50, epoch=3), "the journal had reached epoch 3, LSN 50"),
    ],
)
def test_what_is_known_to_be_lost(known: JournalPosition | None, text: str) -> None:
    found = check_restore(facts(position=known))
    assert any(text in one.text for one in found)
    assert {one.severity for one in found} == {Severity.NOTE}


def test_groups_beyond_the_back_up_and_branches_in_doubt_are_told() -> None:
    stored = [("g", ORDERS, 101), ("g", STOCK, 5), ("h", ORDERS, 100)]
    beyond = list(beyond_end(stored, {ORDERS: 100}))
    assert [(one.name, one.offset, one.end) for one in beyond] == [(ORDERS, 101, 100), (STOCK, 5, 0)]
    text = " ".join(
        one.text
        for one in check_restore(facts(beyond=beyond * GROUPS_TOLD, in_doubt=["XID:1:61:62:q"], has_wildcards=True))
    )
    for expected in (
        "group g has consumed orders-0 up to 101",
        "partitions more",
        "1 branches were prepared",
        "pattern",
    ):
        assert expected in text
