"""Back-ups of a journal in memory: what is in them, and every storage call of source and target failing in turn."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from journal.backup.backup import take_backup
from journal.backup.copy_back import begin_restore, copy_back, read_manifest
from journal.backup.manifest import Manifest, decode_manifest, encode_manifest
from journal.checksum import crc32
from journal.errors import CorruptJournal, DirectoryIsBackup, InvalidContent, JournalError, NoJournal, StorageFailed
from journal.records.ledger import Disagreement, LedgerEntry
from journal.state.copy_marks import MANIFEST, UNFINISHED_BACKUP, UNFINISHED_RESTORE, refuse_backup
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.segments import segment_base
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import ORDERS, STOCK, Index, open_store, xa

NOW_MS = 1_700_000_000_000


def fill(store: JournalTransactionStore, messages: int) -> None:
    for number in range(messages):
        store.put(ORDERS, [b"%d;" % number * 40], len(b"%d;" % number) * 40, 1)
    store.journal.wait_flushed(store.journal.end)


def source_of(*, checkpoint: bool = True) -> FaultyStorage:
    """A closed journal of several segments, with a branch in doubt."""
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    fill(store, 60)
    promised = store.begin(xa("promised"))
    store.transactional_put(promised, STOCK, [b"later"], 5, 1)
    store.prepare(promised)
    if checkpoint:
        snapshot = store.snapshot()
        store.on_checkpoint(store.write_checkpoint(snapshot, {}), snapshot)
    fill(store, 30)
    store.close()
    return storage


def taken(source: FaultyStorage, target: FaultyStorage) -> Manifest:
    return take_backup(source, target, "test", NOW_MS)


def restored(backup: FaultyStorage) -> FaultyStorage:
    target = FaultyStorage(Random(1))
    manifest = read_manifest(backup)
    begin_restore(target, manifest)
    copy_back(backup, manifest, target)
    target.remove(UNFINISHED_RESTORE)
    return target


def content(storage: FaultyStorage) -> tuple[bytes, list[str], int]:
    """The messages of ORDERS, the branches in doubt, and the end of STOCK."""
    index = Index()
    store = open_store(storage, sink=index)
    try:
        read = index.read(store.journal.segments)
        return read[ORDERS], [str(key) for key in store.transactions], store.state.end_of(STOCK)
    finally:
        store.close()


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_restored_back_up_is_the_journal_as_it_was(checkpoint: bool) -> None:
    source, target = source_of(checkpoint=checkpoint), FaultyStorage(Random(1))
    before = {name: bytes(file.cached) for name, file in source.files.items()}, dict(source.blobs)
    manifest = taken(source, target)
    assert ({name: bytes(file.cached) for name, file in source.files.items()}, dict(source.blobs)) == before
    assert (manifest.in_doubt, manifest.epoch, manifest.incarnation) == (1, 1, 1)
    assert content(restored(target)) == content(source)


def test_a_live_journal_is_copied_up_to_what_was_there() -> None:
    source = FaultyStorage(Random(0))
    store = open_store(source)
    fill(store, 20)
    target = FaultyStorage(Random(1))
    manifest = taken(source, target)
    assert manifest.end == store.journal.end
    fill(store, 20)
    store.close()
    orders = content(source)[0]
    copied = content(restored(target))[0]
    assert orders.startswith(copied)
    assert len(copied) == len(orders) // 2


def test_retention_took_the_beginning() -> None:
    source = source_of()
    store = open_store(source)
    snapshot = store.snapshot()
    first = sorted(base for name in source.files if (base := segment_base(name)) is not None)[2]
    kept = store.trim(snapshot, {ORDERS: store.state.end_of(ORDERS)})
    store.on_checkpoint(store.write_checkpoint(kept, {}), kept)
    store.journal.segments.drop_before(first)
    fill(store, 1)
    store.close()
    target = FaultyStorage(Random(1))
    manifest = taken(source, target)
    assert manifest.start > first
    copy = restored(target)
    index = Index()
    store = open_store(copy, sink=index)
    assert index.read(store.journal.segments)[ORDERS] == b"0;" * 40
    store.close()


def test_a_torn_tail_is_left_out() -> None:
    source = source_of()
    last = max(name for name in source.files if segment_base(name) is not None)
    target = FaultyStorage(Random(1))
    end = taken(source, target).end
    base = segment_base(last)
    assert base is not None
    source.files[last].cached[end - base + 8 : end - base + 60] = b"\x07" * 52
    again = FaultyStorage(Random(1))
    assert taken(source, again).end == end
    assert bytes(again.files[last].cached) == bytes(target.files[last].cached)


def test_damage_anywhere_is_not_backed_up() -> None:
    segments = sorted(name for name in source_of().files if segment_base(name) is not None)
    for name in segments[:-1]:  # in the last one, nothing proves that a bad record was ever fsynced
        source, target = source_of(), FaultyStorage(Random(1))
        source.files[name].cached[300] ^= 1
        source.files[name].durable[300] ^= 1
        with pytest.raises((CorruptJournal, InvalidContent)):
            taken(source, target)
        with pytest.raises(DirectoryIsBackup):
            refuse_backup(target)


def test_what_is_no_source_and_no_target() -> None:
    with pytest.raises(NoJournal):
        taken(FaultyStorage(Random(0)), FaultyStorage(Random(1)))
    source, target = source_of(), FaultyStorage(Random(1))
    taken(source, target)
    with pytest.raises(DirectoryIsBackup, match="it is a back-up"):
        taken(target, FaultyStorage(Random(1)))
    with pytest.raises(DirectoryIsBackup, match="not empty"):
        taken(source, target)
    with pytest.raises(DirectoryIsBackup, match="metaq restore"):
        refuse_backup(target)
    refuse_backup(target, is_read=True)


@pytest.mark.parametrize("cut", PowerCut)
def test_a_back_up_that_ends_at_any_call_is_whole_or_refused_and_can_be_repeated(cut: PowerCut) -> None:
    wanted = content(source_of())
    for fail_at in itertools.count():
        source, target = source_of(), FaultyStorage(Random(fail_at), fail_at=fail_at)
        with suppress(JournalError):
            taken(source, target)
        after = target.after_power_cut(cut, Random(fail_at))
        if not target.fault_fired:
            assert content(restored(after)) == wanted
            break
        assert content(source) == wanted
        if after.names():
            with pytest.raises(DirectoryIsBackup):
                refuse_backup(after)
        if MANIFEST not in after.names() or UNFINISHED_BACKUP in after.names():
            with pytest.raises(DirectoryIsBackup, match="no finished back-up"):
                read_manifest(after)
            taken(source_of(), after)
        assert content(restored(after)) == wanted


def test_a_failing_source_is_told_and_leaves_no_back_up() -> None:
    calls = len(source_of().calls)
    for fail_at in itertools.count(calls):
        source, target = source_of(), FaultyStorage(Random(1))
        source.fail_at = fail_at
        try:
            taken(source, target)
        except StorageFailed:
            with pytest.raises(DirectoryIsBackup):
                read_manifest(target)
        if not source.fault_fired:
            break
    assert fail_at > calls


@pytest.mark.parametrize("cut", PowerCut)
def test_copying_back_that_ends_at_any_call_leaves_what_is_refused(cut: PowerCut) -> None:
    backup = FaultyStorage(Random(1))
    taken(source_of(), backup)
    manifest = read_manifest(backup)
    for fail_at in itertools.count():
        target = FaultyStorage(Random(fail_at), fail_at=fail_at)
        with suppress(StorageFailed):
            begin_restore(target, manifest)
            copy_back(backup, manifest, target)
        after = target.after_power_cut(cut, Random(fail_at))
        if after.names():
            with pytest.raises(DirectoryIsBackup, match="interrupted `metaq restore`"):
                refuse_backup(after, is_read=True)
        begin_restore(after, manifest)
        copy_back(backup, manifest, after)
        after.remove(UNFINISHED_RESTORE)
        assert content(after) == content(source_of())
        if not target.fault_fired:
            break


def copied_back(backup: FaultyStorage, target: FaultyStorage) -> None:
    manifest = read_manifest(backup)
    begin_restore(target, manifest)
    copy_back(backup, manifest, target)


def flip(storage: FaultyStorage, name: str) -> None:
    if name in storage.blobs:
        storage.blobs[name] = storage.blobs[name][:-3] + b"X" + storage.blobs[name][-2:]
    else:
        storage.files[name].cached[-1] ^= 1


def drop(storage: FaultyStorage, name: str) -> None:
    storage.blobs.pop(name, None)
    storage.files.pop(name, None)


@pytest.mark.parametrize("harm", [flip, drop])
def test_any_damage_to_a_back_up_is_noticed(harm: Callable[[FaultyStorage, str], None]) -> None:
    backup = FaultyStorage(Random(1))
    taken(source_of(), backup)
    for name in backup.names():
        hurt = FaultyStorage(Random(1))
        taken(source_of(), hurt)
        harm(hurt, name)
        target = FaultyStorage(Random(2))
        with pytest.raises((InvalidContent, DirectoryIsBackup)):
            copied_back(hurt, target)
        if target.names():
            with pytest.raises(DirectoryIsBackup):
                refuse_backup(target)


def test_nothing_is_restored_over_something() -> None:
    backup = FaultyStorage(Random(1))
    taken(source_of(), backup)
    with pytest.raises(DirectoryIsBackup, match="never over another"):
        begin_restore(source_of(), read_manifest(backup))


@pytest.mark.parametrize("name", ["../../etc/passwd", "slave.json", "checkpoint.1/../x", "watermark", ""])
def test_a_manifest_names_files_of_a_journal_only(name: str) -> None:
    backup = FaultyStorage(Random(1))
    raw = encode_manifest(taken(source_of(), backup)).replace(b"checkpoint.1", name.encode())
    _, _, text = raw.partition(b"\n")
    with pytest.raises(InvalidContent, match="is no file of a journal"):
        decode_manifest(b"%08x\n%b" % (crc32(text.removesuffix(b"\n")), text))


def test_a_manifest_of_another_format_is_refused() -> None:
    backup = FaultyStorage(Random(0))
    text = encode_manifest(taken(source_of(), backup)).partition(b"\n")[2].strip().replace(b'"format":1', b'"format":2')
    with pytest.raises(InvalidContent, match="format 2, this metaq reads 1"):
        decode_manifest(b"%08x\n%b\n" % (crc32(text), text))


def test_a_segment_of_another_size_is_no_part_of_a_back_up() -> None:
    backup = FaultyStorage(Random(0))
    manifest = taken(source_of(), backup)
    file = backup.files[next(one.name for one in manifest.files if segment_base(one.name) is not None)]
    file.cached += bytes(8)
    file.durable[:], file.size = file.cached, len(file.cached)
    with pytest.raises(InvalidContent, match="damaged"):
        copy_back(backup, manifest, FaultyStorage(Random(1)))


def test_findings_of_the_ledger_are_in_it() -> None:
    source = source_of()
    store = open_store(source)
    store.record_finding(LedgerEntry(xa("other"), Disagreement.HAZARD, "ann", "why", "evidence"))
    store.close()
    target = FaultyStorage(Random(1))
    taken(source, target)
    store = open_store(restored(target))
    assert [finding.key for finding in store.state.ledger] == [str(xa("other"))]
    store.close()
