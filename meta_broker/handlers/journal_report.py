"""`stats journal`: the log on this broker's disk, in lines of a kind and pairs of key and value.

Reads the disk, so that it runs on a thread. A number that can't be had is left out, never 0.
"""

import os
import time
from collections.abc import Iterator
from itertools import islice

from journal.errors import JournalError
from journal.records.header import RecordHeader
from journal.state.checkpoint import checkpoint_numbers
from journal.wal.scan import record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from meta_broker.handlers.context import Context

SEGMENTS_SHOWN = 64  # the oldest, and the newest


def journal_lines(context: Context) -> Iterator[str]:
    """Yield the report's lines. Any thread."""
    store, journal = context.store, context.store.journal
    end = journal.end
    if len(journal.segments):
        yield (
            f"journal start {journal.start_lsn} end {end} flushed {journal.flushed} "
            f"high_watermark {store.high_watermark.acknowledged} segments {len(journal.segments)}"
        )
    replay = max(end - store.source.durable_checkpoint_lsn, 0)
    yield f"checkpoints durable_lsn {store.source.durable_checkpoint_lsn} replay_bytes {replay}"
    yield from _checkpoints(context)
    yield from _disk(context)
    section = context.config.retention
    hours = "-" if section.hours is None else f"{section.hours:g}"
    size = "-" if section.bytes is None else str(section.bytes)
    yield f"retention hours {hours} bytes {size} policy {section.policy}"
    if (tier := store.tier) is not None:
        cache = tier.cache
        yield (
            f"archive reads {tier.reads} hits {cache.hits} downloads {cache.downloads} failures {cache.failures} "
            f"downloaded_bytes {cache.bytes_downloaded} "
            f"cache_bytes {cache.bytes_held} cache_bytes_max {cache.bytes_max}"
        )
    yield from _segments(journal.segments)


def _checkpoints(context: Context) -> Iterator[str]:
    try:
        numbers = checkpoint_numbers(context.store.journal.storage)
    except JournalError:
        return
    for number in numbers:
        try:
            found = (context.config.data / f"checkpoint.{number}").stat()
        except OSError:
            continue  # deleted meanwhile, or the disk does not answer
        yield f"checkpoint {number} bytes {found.st_size} age_ms {max(int((time.time() - found.st_mtime) * 1000), 0)}"


def _disk(context: Context) -> Iterator[str]:
    try:
        found = os.statvfs(context.config.data)
    except OSError:
        return
    sizes = f"disk free_bytes {found.f_frsize * found.f_bavail} size_bytes {found.f_frsize * found.f_blocks}"
    is_refusing = context.slave is None and context.store.space.is_full
    yield f"{sizes} refuses_writes {'true' if is_refusing else 'false'}"


def _segments(segments: Segments) -> Iterator[str]:
    files = list(segments)
    hidden = max(len(files) - SEGMENTS_SHOWN, 0)
    for base, file in files[:1] + list(islice(files, 1 + hidden, None)):
        try:
            header = record_at(segments, base + SEGMENT_HEADER_BYTES)
        except (JournalError, KeyError):
            header = None  # it can't be read, or retention has just deleted it
        first = f" first_ms {header.time_ms}" if isinstance(header, RecordHeader) else ""
        yield f"segment {base} bytes {file.size}{first}"
