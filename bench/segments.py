"""`python -m bench.segments DIR`: gain of a pre-zeroed segment, and cost of a roll, on the disk that holds DIR.

Below the client API on purpose: single fsyncs are measured, which a network would hide.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from journal.records.header import Offset
from journal.records.record import PartitionName, PutRecord
from journal.wal.flush_mode import SYNC
from journal.wal.journal import Journal
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage

MIB = 1024 * 1024
KIB = 1024
SYNCS_S = 2.0
ROUNDS = 5
RECORD_BYTES = 16 * KIB
SEGMENT_BYTES = 64 * MIB
ROLLS = 16
NAME = PartitionName("bench", 0)
T = TypeVar("T")


class ColdSegments(Segments):
    """Makes every segment when it is needed, without the preallocation thread."""

    def preallocate_next(self, *, prezero: bool) -> None:
        return


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def main(directory: Path) -> None:
    """Measure on the disk that holds DIRECTORY; leaves nothing there."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, prezero in (("allocated only", False), ("zero-written", True)):
        print(f"{name:16}{_best(_syncs, directory, prezero)}", flush=True)
    for name, kind in (("made at the roll", ColdSegments), ("made ahead", Segments)):
        print(f"{name:16}{_best(_rolls, directory, kind)}", flush=True)


def _best(measure: Callable[[Path, T], tuple[float, str]], directory: Path, argument: T) -> str:
    """Return the round with the highest rate: the one that other processes disturbed least."""
    results = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=directory) as work:
            results.append(measure(Path(work), argument))
    rate, text = max(results)
    return f"{rate:8,.0f}/s  {text}"


def _syncs(work: Path, prezero: bool) -> tuple[float, str]:
    """Measure 1 KiB appends, each with its fdatasync."""
    storage = DirectoryStorage.open_for_writing(work)
    began = time.perf_counter()
    file = storage.preallocate("file", 256 * MIB, b"", lambda: not prezero)
    made = time.perf_counter() - began
    taken: list[float] = []
    end = time.perf_counter() + SYNCS_S
    payload = [os.urandom(KIB)]
    while (now := time.perf_counter()) < end:
        file.write(len(taken) * KIB, payload)
        file.sync()
        taken.append(time.perf_counter() - now)
    file.close()
    storage.close()
    return len(taken) / SYNCS_S, f"1 KiB + fdatasync: {_spread(taken)}; file made in {made * 1e3:.0f} ms"


def _rolls(work: Path, kind: type[Segments]) -> tuple[float, str]:
    """Measure durable appends over many segments: those that begin a segment, and the others."""
    storage = DirectoryStorage.open_for_writing(work)
    segments = kind(storage, JournalIdentity("bench", 0), SEGMENT_BYTES)
    journal = Journal.start(segments, segments.start, epoch=1, incarnation=1, flush=SYNC)
    rolling: list[float] = []
    others: list[float] = []
    payload = os.urandom(RECORD_BYTES)
    began = time.perf_counter()
    while len(rolling) < ROLLS:
        count = len(segments)
        now = time.perf_counter()
        header = journal.append(PutRecord(NAME, Offset(0), 1), 0, [payload], RECORD_BYTES)
        journal.wait_flushed(header.end)
        (rolling if len(segments) > count else others).append(time.perf_counter() - now)
        if len(segments) > 4:
            segments.drop_before(header.lsn)
    elapsed = time.perf_counter() - began
    journal.close()
    storage.close()
    rate = (len(rolling) + len(others)) / elapsed
    return rate, f"16 KiB appends: {_spread(others)}; those that roll: {_spread(rolling)}"


def _spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    p50, p99, p100 = (ordered[min(len(ordered) * n // 100, len(ordered) - 1)] * 1e3 for n in (50, 99, 100))
    return f"p50 {p50:.2f} p99 {p99:.2f} max {p100:.1f} ms"


if __name__ == "__main__":
    main()
