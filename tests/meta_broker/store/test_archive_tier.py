"""The tier finds each message that the archive has, begins where that does, and names what is missing."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from journal.archive.download import ObjectMissing
from journal.archive.manifest import NAME, ArchiveManifest, decode_archive_manifest
from journal.errors import StorageFailed
from journal.records.header import Offset
from journal.records.record import PartitionName
from journal.wal.segments import JournalIdentity, segment_name
from meta_broker.config.sections import RetentionSection
from meta_broker.store.archive_cache import ArchiveCold
from meta_broker.store.archive_tier import ArchiveTier
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.index_file import IndexCold
from tests.meta_broker.store.test_retention import MESSAGE, ORDERS, SEGMENT_BYTES, STOCK, Stage, stage

T = TypeVar("T")
Published = dict[PartitionName, list[int]]  # numbers of messages
LATE, NEW = PartitionName("late", 2), PartitionName("new", 3)
ROUNDS, PER_ROUND = 4, 40  # an archived index each; messages, every fifth to STOCK at first, then to LATE


def section(archive: Path) -> RetentionSection:
    return RetentionSection(
        bytes=2 * SEGMENT_BYTES, policy="archive", archive=str(archive), archive_cache_bytes=1 << 20, when=0.0
    )


async def warm(look_up: Callable[[], T]) -> T:
    """Look up, and load what that lacks, as the broker does."""
    while True:
        try:
            return look_up()
        except ArchiveCold as cold:
            await cold.loading
        except IndexCold as cold:
            cold.run()


class TierStage:
    def __init__(self, on: Stage, tier: ArchiveTier, published: Published) -> None:
        self.on = on
        self.tier = tier
        self.published = published

    async def round(self) -> None:
        """Publish some messages, and have the older ones archived."""
        begin = sum(map(len, self.published.values()))
        for number in range(begin, begin + PER_ROUND):
            other = STOCK if number < 2 * PER_ROUND else LATE
            name = ORDERS if number % 5 else other
            self.on.clock.ms += 1000
            self.on.put(name, number)
            self.published[name].append(number)
        await self.on.ticks(4)

    def first(self, name: PartitionName) -> int:
        """Number of the message where the log of *name* begins."""
        return self.on.store.indexes.by_name[name].start // MESSAGE

    async def start(self, name: PartitionName) -> int:
        return await warm(lambda: self.tier.start_of(name, self.on.store.indexes.by_name[name]))

    async def at_time(self, name: PartitionName, time_ms: int) -> int:
        return await warm(lambda: self.tier.at_time(name, self.on.store.indexes.by_name[name], time_ms))

    async def read(self, name: PartitionName, offset: int, bytes_max: int = 1000) -> bytes | None:
        """Return what the tier has at *offset*, which is below the log's start."""

        def look_up() -> bytes | None:
            index = self.tier.index_at(name, self.on.store.indexes.by_name[name], offset)
            if index is None:
                return None
            places = self.tier.at_hand(list(index.places(offset, bytes_max)))
            return ColdRead(self.tier, places).run()

        return await warm(look_up)

    async def read_all(self, name: PartitionName) -> list[int]:
        """Numbers of all archived messages of *name*, in pieces of any number of bytes."""
        found, end = b"", self.on.store.indexes.by_name[name].start
        begin = await self.start(name)
        while begin + len(found) < end:
            data = await self.read(name, begin + len(found), min(end - begin - len(found), 3 * MESSAGE))
            assert data
            found += data
        return [int(found[at + 1 : found.index(b">", at)]) for at in range(0, len(found), MESSAGE)]


@asynccontextmanager
async def opened(path: Path, published: Published) -> AsyncIterator[TierStage]:
    async with stage(path / "data", section(path / "archive")) as on:
        tier = on.store.tier
        assert tier is not None
        await tier.prepare(60)
        yield TierStage(on, tier, published)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Published]:
    """A broker's directory and its archive, which has most of what was published."""
    path, published = tmp_path_factory.mktemp("archived"), Published({ORDERS: [], STOCK: [], LATE: []})

    async def story() -> None:
        async with opened(path, published) as on:
            for _ in range(ROUNDS):
                await on.round()
            assert on.first(ORDERS) > 3 * PER_ROUND // 2
            on.on.store.last_checkpoint()

    asyncio.run(story())
    return path, published


@pytest.fixture
def filled(tmp_path: Path, archived: tuple[Path, Published]) -> Published:
    """A copy of it in *tmp_path*."""
    path, published = archived
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    return {name: list(numbers) for name, numbers in published.items()}


def manifest(path: Path) -> ArchiveManifest:
    return decode_archive_manifest((path / "archive" / NAME).read_bytes())


def write_manifest(path: Path, content: ArchiveManifest) -> None:
    (path / "archive" / NAME).write_bytes(content.encode())


def shortened(whole: ArchiveManifest, indexes: int, segments: int) -> ArchiveManifest:
    """The manifest as it was with that many lines of each kind."""
    found = ArchiveManifest(whole.identity)
    for segment in whole.entries[:segments]:
        found = found.with_segment(segment.base, segment.size, segment.sha256)
    for index in whole.indexes[:indexes]:
        found = found.with_index(index.cut, index.size, index.sha256)
    return found


def forget_local(path: Path) -> None:
    for file in (path / "data" / "archived").glob("*.index"):
        file.unlink()


@pytest.mark.parametrize("has_local", [True, False])
def test_each_message_and_time_is_found(tmp_path: Path, filled: Published, *, has_local: bool) -> None:
    """By the archived indexes that the archive lists, and by those that stand here, if any."""
    if not has_local:
        forget_local(tmp_path)

    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            assert on.tier.is_ready
            for name in filled:
                first = on.first(name)
                assert await on.start(name) == 0
                assert await on.read_all(name) == filled[name][:first]
                times = [1_700_000_000_000 + 1000 * (number + 1) for number in filled[name]]
                for number in range(0, first, 7):
                    assert await on.at_time(name, times[number]) == number * MESSAGE
                    assert await on.at_time(name, times[number] - 500) == number * MESSAGE
                assert await on.at_time(name, times[-1] + 1) == first * MESSAGE
                assert await on.read(name, -1) is None
            await on.round()
            assert await on.read_all(ORDERS) == filled[ORDERS][: on.first(ORDERS)]

    asyncio.run(story())


def test_what_the_archive_never_had_begins_where_the_log_does(tmp_path: Path, filled: Published) -> None:
    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            for number in range(3):
                on.on.put(NEW, number)
            assert await on.start(NEW) == 0
            assert await on.at_time(NEW, 0) == 0
            on.on.store.indexes.trim(NEW, Offset(MESSAGE))  # as a deleted topic's
            assert await on.start(NEW) == MESSAGE
            assert await on.read(NEW, 0) is None

    asyncio.run(story())


@pytest.mark.parametrize("removed", [3, 13, 1000])
def test_it_begins_behind_the_segments_that_were_removed_by_hand(
    tmp_path: Path, filled: Published, removed: int
) -> None:
    """STOCK has no messages in the later ones, and LATE none in the first."""
    for segment in manifest(tmp_path).entries[:removed]:
        (tmp_path / "archive" / segment.name).unlink()

    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            await warm(on.tier._indexes)  # the names are known
            for name in filled:
                start, first = await on.start(name), on.first(name)
                assert (start == 0) == (name is LATE and removed < 1000)
                assert (start == first * MESSAGE) == (removed == 1000 or (name is STOCK and removed == 13))
                assert await on.read(name, start - 1) is None
                assert await on.read_all(name) == filled[name][start // MESSAGE : first]
                assert await on.at_time(name, 0) == start

    asyncio.run(story())


@pytest.mark.parametrize("local", [0, 2])
def test_it_begins_where_the_log_does_if_all_was_removed(tmp_path: Path, filled: Published, local: int) -> None:
    """Segments without messages went last. *local*: indexes that the archive has, too."""
    whole = manifest(tmp_path)
    for segment in whole.entries:
        (tmp_path / "archive" / segment.name).unlink()
    sha256 = hashlib.sha256((tmp_path / "data" / segment_name(whole.end)).read_bytes()).hexdigest()
    write_manifest(tmp_path, whole.with_segment(whole.end, SEGMENT_BYTES, sha256))
    forget_local(tmp_path)
    for index in whole.indexes[len(whole.indexes) - local :]:
        shutil.copy(tmp_path / "archive" / index.name, tmp_path / "data" / "archived")

    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            await warm(on.tier._indexes)
            for name in filled:
                assert await on.start(name) == on.first(name) * MESSAGE
                assert await on.read(name, (on.first(name) - 1) * MESSAGE) is None

    asyncio.run(story())


def test_an_older_manifest_names_what_it_lacks(tmp_path: Path, filled: Published) -> None:
    """Of messages behind its last line it knows no index, and of those in the index here no segment."""
    whole = manifest(tmp_path)
    write_manifest(tmp_path, shortened(whole, 1, 2))

    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            assert await on.read(ORDERS, 0)
            with pytest.raises(ObjectMissing, match="in none that the archive lists"):
                await on.read(ORDERS, (on.first(ORDERS) - 1) * MESSAGE)
            with pytest.raises(ObjectMissing, match=f"of {ORDERS} is in no index .* name the archive"):
                await on.read(ORDERS, on.first(ORDERS) // 2 * MESSAGE)
            write_manifest(tmp_path, whole)
            on.tier._list_at = 0.0
            await warm(on.tier._known)
            assert on.tier._listing is not None
            await on.tier._listing
            write_manifest(tmp_path, shortened(whole, 1, 2))
            await on.tier._list()
            assert await on.read_all(ORDERS) == filled[ORDERS][: on.first(ORDERS)], "what was listed once, stays so"

    asyncio.run(story())


def test_the_archive_of_another_broker_or_another_history_is_refused(
    tmp_path: Path, filled: Published, caplog: pytest.LogCaptureFixture
) -> None:
    forget_local(tmp_path)
    whole = manifest(tmp_path)
    last = whole.entries[-1]

    async def refused(why: str) -> None:
        caplog.clear()
        async with opened(tmp_path, filled) as on:
            assert not on.tier.is_ready
            with pytest.raises(StorageFailed, match=why):
                await warm(on.tier._known)
        assert "archive not listed" in caplog.text

    write_manifest(tmp_path, ArchiveManifest(JournalIdentity("shop", 7)))
    asyncio.run(refused("is the archive of .*shop.*: give every broker one of its own"))
    # A stop came between an upload and the end of the segment here.
    shutil.copy(tmp_path / "archive" / last.name, tmp_path / "data")
    other = shortened(whole, 99, len(whole.entries) - 1).with_segment(last.base, last.size, 64 * "0")
    write_manifest(tmp_path, other)
    asyncio.run(refused("of a history that was given up: name a new place"))
    write_manifest(tmp_path, whole)

    async def the_same() -> None:
        async with opened(tmp_path, filled) as on:
            assert await on.read_all(ORDERS) == filled[ORDERS][: on.first(ORDERS)]
            await on.tier._list()

    asyncio.run(the_same())


def test_it_goes_on_with_the_index_here_before_the_archive_is_listed(tmp_path: Path, filled: Published) -> None:
    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            await on.tier.prepare(0)
            await on.round()
            assert await on.read_all(ORDERS) == filled[ORDERS][: on.first(ORDERS)]

    asyncio.run(story())


def test_an_index_here_that_was_being_written_goes_and_a_damaged_one_is_named(
    tmp_path: Path, filled: Published
) -> None:
    directory = tmp_path / "data" / "archived"
    (directory / "1.tmp").write_bytes(b"half")
    (directory / "README").write_bytes(b"somebody's")

    async def story() -> None:
        async with opened(tmp_path, filled) as on:
            assert on.tier.is_ready

    asyncio.run(story())
    assert {path.name for path in directory.iterdir()} > {"README"}
    assert not (directory / "1.tmp").exists()
    (found,) = directory.glob("*.index")
    found.write_bytes(b"")
    with pytest.raises(StorageFailed, match="restore it, or move it away and lose the offsets in it"):
        asyncio.run(story())
