"""Offsets in a file: what a commit stored is there after any crash, and never goes back by itself."""

import json
import multiprocessing
from pathlib import Path
from random import Random

import pytest

from journal.errors import StorageFailed
from meta_client.consumer.offset_stores import LocalOffsetStore
from meta_client.consumer.offset_stores.errors import OffsetsInUse, OffsetsMalformed
from meta_client.consumer.offsets import OffsetEntry
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from zk.tree.nodes import Partition

A, B = Partition(0, 0), Partition(0, 1)


@pytest.mark.scenario("B09")
def test_it_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with LocalOffsetStore.open(tmp_path / "offsets", "billing") as store:
        assert store.load("orders", A) is None
        store.commit([OffsetEntry("orders", A, 25, 100_000), OffsetEntry("orders", B, 7)])
        store.commit([OffsetEntry("orders", A, 50, 100_001)])
    with LocalOffsetStore.open(tmp_path / "offsets", "billing") as store:
        assert (store.load("orders", A), store.load("orders", B), store.load("returns", A)) == (50, 7, None)
    assert json.loads((tmp_path / "offsets/offsets.json").read_text()) == {
        "billing": [
            {"topic": "orders", "partition": {"brokerId": 0, "partition": 0}, "offset": 50, "messageId": 100_001},
            {"topic": "orders", "partition": {"brokerId": 0, "partition": 1}, "offset": 7, "messageId": -1},
        ]
    }


def test_back_only_when_it_is_asked_for(tmp_path: Path) -> None:
    with LocalOffsetStore.open(tmp_path, "billing") as store:
        store.commit([OffsetEntry("orders", A, 9000)])
        store.commit([OffsetEntry("orders", A, 25)])
        assert store.load("orders", A) == 9000
        store.commit([OffsetEntry("orders", A, 25, is_reset=True)])
        assert store.load("orders", A) == 25
    with LocalOffsetStore.open(tmp_path, "billing") as store:
        assert store.load("orders", A) == 25


def test_the_ancestors_file_is_read_and_other_groups_are_kept(tmp_path: Path) -> None:
    row = {
        "topic": "orders",
        "partition": {"brokerId": 0, "partition": 1},
        "offset": 77,
        "messageId": 5,
        "modified": True,
    }
    (tmp_path / "offsets.json").write_text(json.dumps({"billing": [row], "other": [row]}))
    with LocalOffsetStore.open(tmp_path, "billing") as store:
        assert store.load("orders", B) == 77
        store.commit([OffsetEntry("orders", B, 78)])
    with LocalOffsetStore.open(tmp_path, "other") as store:
        assert store.load("orders", B) == 77


def test_anybody_may_look(tmp_path: Path) -> None:
    with LocalOffsetStore.open(tmp_path, "billing") as store:
        store.commit([OffsetEntry("orders", A, 25)])
        looking = LocalOffsetStore.open_for_reading(tmp_path, "billing")
        assert looking.load("orders", A) == 25
        with pytest.raises(OffsetsInUse, match="was opened for reading"):
            looking.commit([OffsetEntry("orders", A, 50)])
        looking.close()
        assert store.load("orders", A) == 25


def _open(path: Path) -> str:
    try:
        LocalOffsetStore.open(path, "billing").close()
    except OffsetsInUse as error:
        return str(error)
    return ""


def test_one_user_at_a_time(tmp_path: Path) -> None:
    store = LocalOffsetStore.open(tmp_path, "billing")
    with pytest.raises(OffsetsInUse, match="is in use by another consumer"):
        LocalOffsetStore.open(tmp_path, "audit")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert "is in use by another consumer" in pool.apply(_open, (tmp_path,))
        store.close()
        store.close()
        assert pool.apply(_open, (tmp_path,)) == ""
    with pytest.raises(OffsetsInUse, match="is closed, or was opened for reading"):
        store.commit([OffsetEntry("orders", A, 1)])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"billing": 5}',
        '{"billing": [{"topic": "t", "partition": {"brokerId": 0}, "offset": 1}]}',
        '{"billing": [{"topic": "t", "partition": {"brokerId": 0, "partition": 0}, "offset": -1}]}',
        '{"billing": [{"topic": "t", "partition": {"brokerId": -1, "partition": 0}, "offset": 1}]}',
        '{"billing": [{"topic": "t", "partition": {"brokerId": 0, "partition": 0}, "offset": 9223372036854775808}]}',
        '{"billing": ' + "[" * 100_000,
    ],
)
def test_what_is_no_offsets_is_named_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(OffsetsMalformed, match=r"offsets\.json .*nothing was changed; mend the file") as raised:
        LocalOffsetStore.open(tmp_path, "billing")
    assert "\n" not in str(raised.value)
    assert path.read_text() == content
    path.unlink()
    LocalOffsetStore.open(tmp_path, "billing").close()  # the refusal let go of the directory


@pytest.mark.parametrize("cut", PowerCut)
def test_no_crash_takes_back_what_was_committed(cut: PowerCut) -> None:
    """Every storage call is made to fail in turn, then the power goes."""
    random = Random(11)
    for fail_at in range(200):
        storage = FaultyStorage(random, fail_at)
        stored: dict[Partition, int] = {}
        tried: dict[Partition, int] = {}
        try:
            store = LocalOffsetStore(storage, "billing")
            for step in range(1, 6):
                entries = [OffsetEntry("orders", part, 100 * step) for part in (A, B)[: 1 + step % 2]]
                tried |= {entry.partition: entry.offset for entry in entries}
                store.commit(entries)
                stored |= tried
        except StorageFailed:
            pass
        after = LocalOffsetStore(storage.after_power_cut(cut, random), "billing")
        found = {part: offset for part in (A, B) if (offset := after.load("orders", part)) is not None}
        assert found in (stored, stored | tried), f"fail_at={fail_at}"
        if not storage.fault_fired:
            assert fail_at > 5
            return
    pytest.fail("the workload never got past the last call")


def test_a_commit_that_failed_is_not_taken_for_done(tmp_path: Path) -> None:
    storage = FaultyStorage(Random(1), fail_at=1)  # 0: names
    store = LocalOffsetStore(storage, "billing")
    with pytest.raises(StorageFailed):
        store.commit([OffsetEntry("orders", A, 25)])
    assert store.load("orders", A) is None
    store.commit([OffsetEntry("orders", A, 25)])
    assert LocalOffsetStore(storage, "billing").load("orders", A) == 25
