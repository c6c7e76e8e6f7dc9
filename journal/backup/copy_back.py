"""Copies a back-up into an empty directory, comparing every byte with the manifest."""

import hashlib
from collections.abc import Callable
from typing import Final

from journal.backup.backup import CHUNK_BYTES
from journal.backup.manifest import BackupFile, Manifest, decode_manifest, encode_manifest
from journal.errors import DirectoryIsBackup, InvalidContent
from journal.state.copy_marks import MANIFEST, UNFINISHED_BACKUP, UNFINISHED_RESTORE
from journal.wal.segments import segment_base
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import StorageFile

_DAMAGED: Final = "differs from its manifest: this back-up is damaged, take another one"


def read_manifest(backup: Storage) -> Manifest:
    """Return the manifest of a finished back-up whose files have the sizes that it names. Raises DirectoryIsBackup,
    InvalidContent, StorageFailed."""
    names = backup.names()
    if UNFINISHED_BACKUP in names or MANIFEST not in names:
        raise DirectoryIsBackup(f"{backup.path} is no finished back-up: name a directory that `metaq backup` made")
    try:
        manifest = decode_manifest(backup.read(MANIFEST))
    except InvalidContent as error:
        raise InvalidContent(f"{backup.path}/{MANIFEST}: {error}") from error
    missing = [file.name for file in manifest.files if file.name not in names]
    if missing:
        raise InvalidContent(f"{backup.path}: {len(missing)} files are missing, {missing[0]} first")
    return manifest


def begin_restore(target: Storage, manifest: Manifest) -> None:
    """Mark *target*, which is empty or holds an interrupted restoration, as unfinished. Durable on return. Raises
    DirectoryIsBackup, StorageFailed."""
    names = target.names()
    if UNFINISHED_RESTORE not in names:
        if [name for name in names if name != UNFINISHED_RESTORE + TMP_SUFFIX]:
            raise DirectoryIsBackup(f"{target.path} is not empty: restore into a new directory, never over another")
        target.replace(UNFINISHED_RESTORE, encode_manifest(manifest))
    for name in target.names():
        if name != UNFINISHED_RESTORE:
            target.remove(name)


def copy_back(
    backup: Storage, manifest: Manifest, target: Storage | None, on_progress: Callable[[int], None] = lambda done: None
) -> None:
    """Copy every file to *target*, durable on return; only verify without one. Raises InvalidContent, StorageFailed."""
    done = 0
    for file in manifest.files:
        if segment_base(file.name) is None:
            raw = backup.read(file.name)
            _compare(backup, file, len(raw), hashlib.sha256(raw).hexdigest())
            if target is not None:
                target.replace(file.name, raw)
        else:
            _copy_segment(backup, file, target)
        done += file.bytes
        on_progress(done)


def _copy_segment(backup: Storage, file: BackupFile, target: Storage | None) -> None:
    segment = backup.open(file.name, writable=False)
    copy: StorageFile | None = None
    try:
        if segment.size != file.bytes:
            raise InvalidContent(f"{backup.path}/{file.name} {_DAMAGED}")
        if target is not None:
            copy = target.preallocate(file.name, file.bytes, b"", lambda: True)
        digest, reader = hashlib.sha256(), segment.reader()
        for position in range(0, file.bytes, CHUNK_BYTES):
            data = reader.read(position, min(CHUNK_BYTES, file.bytes - position))
            digest.update(data)
            if copy is not None and data.count(0) != len(data):  # zeros are allocated already
                copy.write(position, [data])
        _compare(backup, file, segment.size, digest.hexdigest())
        if copy is not None:
            copy.sync()
    finally:
        segment.close()
        if copy is not None:
            copy.close()
    if target is not None:
        target.rename_into_place(file.name)


def _compare(backup: Storage, file: BackupFile, size: int, sha256: str) -> None:
    if (size, sha256) != (file.bytes, file.sha256):
        raise InvalidContent(f"{backup.path}/{file.name} {_DAMAGED}")
