"""An object store that refuses, cuts answers short, loses them or tells the past: what the journal drops is there.

A proxy before the S3 server does that.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from journal.archive.keeper import SegmentKeeper
from journal.archive.manifest import NAME, decode_archive_manifest
from journal.archive.object_place import ObjectPlace
from journal.archive.view import kept_from
from journal.errors import StorageFailed
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage
from spark_jobs.source.locations import plan as planned
from tests.fixtures.s3_faults import DENY, FAULTS, STALE, S3Faults, s3_faults
from tests.fixtures.s3_server import S3Server
from tests.meta_broker.store.test_object_archive import bucket, section, stored, until
from tests.meta_broker.store.test_retention import ORDERS, judged, stage

SIZE = 4096
Fault = Callable[[str, str], str | None]


class Store:
    """The proxy; `fault` says what happens to a request, by verb and path."""

    def __init__(self) -> None:
        self.fault: Fault = lambda verb, path: None
        self.proxy: S3Faults


@pytest.fixture
def store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    found = Store()
    with s3_faults(s3.port, lambda verb, path: found.fault(verb, path)) as found.proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.proxy.endpoint)
        yield found


@contextmanager
def four_segments(directory: Path) -> Iterator[Segments]:
    with (
        closing(DirectoryStorage.open_for_writing(directory)) as storage,
        closing(Segments.open(storage, JournalIdentity("shop", 3), SIZE, writable=True)) as segments,
    ):
        for _ in range(4):
            segments.roll()
        yield segments


def test_a_manifest_whose_answer_was_lost_is_nobody_else_s(tmp_path: Path, store: Store) -> None:
    """The next attempt told operators to stop another broker, which there is none of."""
    bucket("lost")
    place = ObjectPlace("s3://lost/broker-0")
    with four_segments(tmp_path) as segments:
        keeper = SegmentKeeper(place)
        store.fault = lambda verb, path: DENY if verb == "POST" and f"{NAME}?uploadId" in path else None
        with pytest.raises(StorageFailed):
            segments.drop_before(2 * SIZE, keeper)
        store.fault = lambda verb, path: None
        assert segments.drop_before(2 * SIZE, keeper) == 2
    data = place.read(NAME)
    assert data is not None
    assert [entry.base for entry in decode_archive_manifest(data).entries] == [0, SIZE]


def test_a_listing_of_the_past_moves_no_reader_past_what_is_there(tmp_path: Path, store: Store) -> None:
    """A segment of the manifest that the store does not list counts as removed by hand only if it is gone."""
    files = bucket("past")
    url = "s3://past/broker-0"
    place = ObjectPlace(url)
    with four_segments(tmp_path) as segments:
        assert segments.drop_before(2 * SIZE, SegmentKeeper(place)) == 2
    data = place.read(NAME)
    assert data is not None
    manifest = decode_archive_manifest(data)
    files.rm(f"past/broker-0/{manifest.entries[0].name}")
    store.fault = lambda verb, path: STALE if "list-type" in path else None
    assert place.names() == set(), "as before the first segment"
    with pytest.raises(StorageFailed, match=f"does not list {manifest.entries[1].name}, which is there"):
        kept_from(manifest, place, place.names())
    with pytest.raises(StorageFailed, match="list it again"):
        planned(url)
    store.fault = lambda verb, path: None
    assert kept_from(manifest, place, place.names()) == SIZE, "the first was removed"
    assert [each.base for each in planned(url)] == [SIZE]


def test_what_the_journal_drops_is_in_the_store_whatever_that_does(
    tmp_path: Path, s3: S3Server, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    seed = random.getrandbits(32)
    chance = random.Random(seed)
    bucket("faulty")
    files = S3FileSystem(endpoint_url=s3.endpoint, skip_instance_cache=True)  # past the proxy
    data = tmp_path / "data"
    written = dict[int, str]()

    def faulty(verb: str, path: str) -> str | None:
        del verb, path
        return chance.choice(FAULTS) if chance.random() < 0.15 else None

    def check() -> None:
        gone = [base for base in written if not (data / f"{base:020d}.journal").exists()]
        if gone:
            manifest, segments = stored(files, "faulty/broker-0")
            listed = {entry.base: entry.sha256 for entry in manifest.entries}
            for base in gone:
                assert written[base] == listed.get(base) == hashlib.sha256(segments[base]).hexdigest(), (seed, base)

    async def story() -> None:
        for life in range(2):
            async with stage(data, section("s3://faulty/broker-0")) as on:
                for number in range(30):
                    on.put(ORDERS, 30 * life + number)
                for path in sorted(data.glob("*.journal"))[:-1]:
                    written[int(path.stem)] = hashlib.sha256(path.read_bytes()).hexdigest()
                store.fault = faulty
                for _ in range(15):
                    await on.ticks(1)
                    check()
                store.fault = lambda verb, path: None
        async with stage(data, section("s3://faulty/broker-0")) as on:
            await until(on, lambda: len(on.store.journal.segments) <= 4)
        check()
        assert len(written) > 8

    caplog.set_level(logging.CRITICAL)
    asyncio.run(story())
    assert list(judged(data)) == []
