"""The decision log on a real disk: what it remembers, what it survives, and that it stays small."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.errors import CorruptJournal, StorageFailed
from journal.records.xid import Xid
from journal.wal.scan import ScanEnd, Scanner
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage
from meta_client import own_journal
from meta_client.coordinator.decision_log import DecisionLog, read_decisions
from meta_client.coordinator.errors import CopiedLog, ForeignLog, LogInUse
from meta_client.coordinator.names import InvalidCoordinatorName, new_nonce
from tests.fixtures.failing_device import failing_device
from tests.fixtures.interrupts import interrupted

SEGMENT_BYTES = 4096


def open_log(path: Path, name: str = "shop") -> DecisionLog:
    return DecisionLog.open(path, name, segment_bytes=SEGMENT_BYTES)


def xid(number: int) -> Xid:
    return Xid(1, b"shop.%d" % number, b"")


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.journal"))


def test_a_decision_survives_and_a_forgotten_one_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.decide(xid(1), "a")
    log.decide(xid(2), "b")
    log.forget(xid(1))
    log.close()
    log.close()
    with_again = open_log(tmp_path)
    assert with_again.unfinished() == {xid(2): "b"}
    with_again.close()


def test_a_decision_that_is_read_beside_the_log_is_on_the_disk(tmp_path: Path) -> None:
    """The reader ends branches as it says, also beside a coordinator that was killed before its fsync, or whose fsync
    failed: then the page cache has what the disk has not."""
    with failing_device(tmp_path, 16) as device:
        path = device.directory / "log"
        log = open_log(path)
        log.decide(xid(1), "a")
        (segment,) = segments(path)
        before = segment.read_bytes()
        log.decide(xid(2), "b")
        log.close()
        after = segment.read_bytes()
        with segment.open("rb+", 0) as file:
            file.write(before)
            os.fsync(file.fileno())
            file.seek(0)
            file.write(after)
        found = [read_decisions(path).unfinished]
        device.cut_power()
        device.power_on()
        found.append(read_decisions(path).unfinished)
        log = open_log(path)
        device.refuse_writes([segment])
        with pytest.raises(StorageFailed):
            log.decide(xid(3), "c")
        found.append(read_decisions(path).unfinished)
        with pytest.raises(StorageFailed):
            log.close()
    assert found == [{xid(1): "a", xid(2): "b"}] * 3


def test_a_log_that_is_written_meanwhile_is_not_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    log.decide(xid(1), "a")
    more = [xid(2), xid(3), xid(4)]

    class Slow(Scanner):
        """A reader that the coordinator overtakes before it judges the end."""

        def judge_end(self) -> ScanEnd:
            while more:
                log.decide(more.pop(), "b")
            return super().judge_end()

    monkeypatch.setattr(own_journal, "Scanner", Slow)
    assert len(read_decisions(tmp_path).unfinished) == 4
    log.close()


def test_a_ctrl_c_at_any_moment_leaves_a_log_that_goes_on_and_reads_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for nth in itertools.count():
        was_interrupted = interrupted(nth, lambda: log.decide(xid(nth), "a" * 100))  # noqa: B023 - called at once
        log.decide(xid(-nth), "b" * 100)
        if not was_interrupted:
            break
    known = log.unfinished()
    log.close()
    assert read_decisions(tmp_path).unfinished == known
    assert {xid(-number) for number in range(nth)} <= known.keys()


def test_identifiers_never_repeat_whatever_is_copied(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    name = log.name
    log.close()
    log = open_log(tmp_path)
    assert log.name == name
    log.close()
    assert len({name.xid(new_nonce()) for _ in range(1000)}) == 1000


def test_a_copy_is_refused_until_it_is_said_to_be_the_only_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "original")
    log.decide(xid(1), "kept")
    log.close()
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    before = {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()}
    with pytest.raises(CopiedLog, match=r"create the file .*/copy/moved and open it again"):
        open_log(tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()} == before
    (tmp_path / "copy" / "place").unlink()  # only the segments were copied
    with pytest.raises(CopiedLog, match="nothing says where that was"):
        open_log(tmp_path / "copy")
    (tmp_path / "copy" / "moved").touch()
    log = open_log(tmp_path / "copy")
    assert log.unfinished() == {xid(1): "kept"}
    log.close()
    open_log(tmp_path / "copy").close()  # it counts once, and is remembered
    shutil.copytree(tmp_path / "copy", tmp_path / "another")
    with pytest.raises(CopiedLog):
        open_log(tmp_path / "another")
    open_log(tmp_path / "original").close()


def test_a_directory_that_was_renamed_or_comes_back_after_a_reboot_is_the_same(tmp_path: Path) -> None:
    open_log(tmp_path / "log").close()
    (tmp_path / "log").rename(tmp_path / "renamed")
    open_log(tmp_path / "renamed").close()
    place = tmp_path / "renamed" / "place"
    inode, device, boot = place.read_text().split()
    place.write_text(f"{inode} device=77 boot=before\n")  # as a machine that found its disks in another order left it
    open_log(tmp_path / "renamed").close()
    assert place.read_text().split() == [inode, device, boot]
    place.write_text(f"{inode} device=77 {boot}\n")  # the same inode of another disk: a copy of the file system
    with pytest.raises(CopiedLog):
        open_log(tmp_path / "renamed")


def test_a_log_that_was_being_made_when_it_was_killed_is_made(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    for file in segments(tmp_path):
        file.unlink()
    open_log(tmp_path).close()


def test_another_coordinators_directory_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, "shop")
    with pytest.raises(LogInUse, match="in use by another coordinator"):
        open_log(tmp_path, "shop")
    log.close()
    with pytest.raises(ForeignLog, match="'shop', not of 'bank'"):
        open_log(tmp_path, "bank")
    with pytest.raises(InvalidCoordinatorName):
        open_log(tmp_path, "a:b")
    open_log(tmp_path, "shop").close()


def test_a_brokers_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    broker = Segments.open(storage, JournalIdentity("metaq", 7), SEGMENT_BYTES, writable=True)
    broker.roll()
    broker.close()
    storage.close()
    before = [file.read_bytes() for file in segments(tmp_path)]
    with pytest.raises(ForeignLog, match="broker 7 of cluster 'metaq'"):
        open_log(tmp_path)
    assert [file.read_bytes() for file in segments(tmp_path)] == before


def test_the_log_is_bounded_and_copies_the_unfinished_forward(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.decide(xid(0), "kept")
    for number in range(1, 400):
        log.decide(xid(number), "x" * 100)
        log.forget(xid(number))
    assert len(segments(tmp_path)) <= 3
    log.close()
    log = open_log(tmp_path)
    assert log.unfinished() == {xid(0): "kept"}
    log.close()


def test_a_log_of_nothing_but_unfinished_decisions_is_not_copied_at_every_step(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(400):
        log.decide(xid(number), "x" * 100)
    for number in range(1000, 1100):
        log.decide(xid(number), "y")
        log.forget(xid(number))
    size = sum(file.stat().st_size for file in segments(tmp_path))
    log.close()
    assert size < 4 * 400 * 250  # not a copy of the 400 for each of the 100
    log = open_log(tmp_path)
    assert set(log.unfinished()) == {xid(number) for number in range(400)}
    log.close()


def test_incarnations_go_on_after_everything_was_dropped(tmp_path: Path) -> None:
    before = 0
    for _ in range(3):
        log = open_log(tmp_path)
        assert log._journal.incarnation > before
        before = log._journal.incarnation
        for number in range(100):
            log.decide(xid(number), "x" * 100)
            log.forget(xid(number))
        log.close()


def test_threads_share_fsyncs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    started = log._journal.syncs
    threads = [threading.Thread(target=_decide_some, args=(log, first)) for first in range(0, 160, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.unfinished()) == 160
    assert log._journal.syncs - started < 160
    log.close()


def _decide_some(log: DecisionLog, first: int) -> None:
    for number in range(first, first + 10):
        log.decide(xid(number), "x")


def _tail(path: Path) -> tuple[Path, int]:
    """The newest segment and where its records end."""
    file = segments(path)[-1]
    return file, len(file.read_bytes().rstrip(b"\0"))


def _cut_in_half(raw: bytearray, end: int) -> None:
    raw[end - 20 : end] = bytes(20)


def _flip(raw: bytearray, end: int) -> None:
    raw[end - 20] ^= 1


@pytest.mark.parametrize("damage", [_cut_in_half, _flip])
def test_a_torn_last_record_is_cut_and_what_came_before_stays(
    tmp_path: Path, damage: Callable[[bytearray, int], None]
) -> None:
    log = open_log(tmp_path)
    log.decide(xid(1), "first")
    log.decide(xid(2), "second")
    log.close()
    file, end = _tail(tmp_path)
    raw = bytearray(file.read_bytes())
    damage(raw, end)
    file.write_bytes(raw)
    log = open_log(tmp_path)
    assert log.unfinished() == {xid(1): "first"}
    log.decide(xid(3), "third")
    log.close()
    log = open_log(tmp_path)
    assert log.unfinished() == {xid(1): "first", xid(3): "third"}
    log.close()


def test_a_corrupt_decision_is_refused_not_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.decide(xid(1), "PRECIOUS")
    log.decide(xid(2), "second")
    log.decide(xid(3), "third")
    log.close()
    file = segments(tmp_path)[0]
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"PRECIOUS")] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CorruptJournal):
        open_log(tmp_path)
    assert file.read_bytes() == bytes(raw)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    actions=st.lists(
        st.one_of(st.tuples(st.just("decide"), st.integers(0, 30)), st.tuples(st.just("reopen"), st.just(0))),
        max_size=120,
    ),
    forget_after=st.integers(0, 5),
)
def test_it_remembers_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], forget_after: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    model: dict[Xid, str] = {}
    log = open_log(path)
    for action, number in actions:
        if action == "reopen":
            log.close()
            log = open_log(path)
        elif xid(number) in model:
            log.forget(xid(number))
            del model[xid(number)]
        else:
            text = "x" * (number * 10)
            log.decide(xid(number), text)
            model[xid(number)] = text
        while len(model) > forget_after:
            oldest = next(iter(model))
            log.forget(oldest)
            del model[oldest]
        assert log.unfinished() == model
    log.close()
    log = open_log(path)
    assert log.unfinished() == model
    log.close()
