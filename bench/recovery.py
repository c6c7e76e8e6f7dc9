"""Time of a broker's start: after a crash, by the bytes to replay, and after a checkpoint, by its state.

Writes the journal here, with the broker's store; measures a broker process from its first instruction until it serves.
The page cache is as the writing left it.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.environment import READY
from bench.result import Result
from journal.checksum import crc32
from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.state.wall_clock import wall_clock_ms
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.loading import load
from meta_broker.store.message_store import MessageStore

KIB = 1024
GB = 1_000_000_000
PARTITIONS = 8
START_TIMEOUT_S = 120
QUEUED_BYTES_MAX = 32 * KIB * KIB
SPARE_BYTES = 2 * GB  # left on the disk beside what a case writes


def after_checkpoint(case: str, total: int, branches: int) -> Result:
    """Measure seconds until a broker with *total* bytes and *branches* in doubt serves, all below a checkpoint."""
    with directory_for(total) as data, store_in(data) as store:
        prepare_branches(store, branches)
        fill(store, total, 8 * KIB)
        store.last_checkpoint()
        store.close()
        seconds, said = _start(data)
        assert f"{branches} branches in doubt" in said, said
    detail = {"journal_mb": total // 1_000_000, "in_doubt": branches, "replayed_bytes": _replayed(said)}
    return Result(case, seconds, "s", _empty_start(), detail)


def after_crash(case: str, total: int, record_bytes: int) -> Result:
    """Measure the start in MB/s for *total* bytes in records of *record_bytes*, all above the last checkpoint.

    The baseline is the checksum of the same bytes, read from the same files.
    """
    with directory_for(total) as data, store_in(data) as store:
        fill(store, total, record_bytes)
        store.close()
        baseline = _checksum_rate(data)
        seconds, said = _start(data)
        replayed = _replayed(said)
        assert replayed >= total, said
    detail = {"start_s": round(seconds, 2), "empty_start_s": round(_empty_start(), 2), "record_bytes": record_bytes}
    return Result(case, replayed / seconds / 1e6, "MB/s", baseline / 1e6, detail)


@contextlib.contextmanager
def directory_for(total: int) -> Iterator[Path]:
    """Make a directory on a disk with room for *total* bytes; removes it with the block."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name:
        free = shutil.disk_usage(name).free
        if free < total + SPARE_BYTES:
            raise RuntimeError(f"{name}: {free} bytes are free, {total + SPARE_BYTES} are needed: set TMPDIR")
        yield Path(name) / "broker"


@contextlib.contextmanager
def store_in(data: Path) -> Iterator[MessageStore]:
    """Open a broker's store in this process, to write a journal with."""
    store = MessageStore.open(_config(data), "bench", lambda: None, wall_clock_ms)
    try:
        yield store
    finally:
        store.close()


def _config(data: Path) -> BrokerConfig:
    return load(None, data=data, broker_id=0, port=0, flush="interval:1000")


def prepare_branches(store: MessageStore, count: int) -> None:
    """Put *count* branches in doubt, each of one message."""
    transactions = store.transactions
    for number in range(count):
        branch = transactions.begin(XaKey(Xid.of(f"{number}", "bench"), "bench"))
        name = PartitionName("bench", number % PARTITIONS)
        transactions.transactional_put(branch, name, [b"x" * KIB], KIB, 1)
        transactions.prepare(branch)


def fill(store: MessageStore, total: int, record_bytes: int) -> None:
    """Put *total* bytes, *record_bytes* a record, into PARTITIONS partitions; durable on return."""
    names = [PartitionName("bench", number) for number in range(PARTITIONS)]
    frames = [b"x" * record_bytes]
    end = store.journal.end + total
    number = 0
    while store.journal.end < end:
        result = store.transactions.put(names[number % PARTITIONS], frames, record_bytes, max(record_bytes // KIB, 1))
        store.high_watermark.run_after(result.lsn, store.publish, result.updates)
        number += 1
        if store.journal.queued_bytes > QUEUED_BYTES_MAX:
            store.journal.wait_flushed(store.journal.end)
            store.advance()
    store.journal.wait_flushed(store.journal.end)
    store.advance()


def _start(data: Path) -> tuple[float, str]:
    """Start a broker on *data* and end it. Returns the seconds until it serves, and its output."""
    with serving(data) as broker:
        return broker.start_s, broker.said


@dataclass(frozen=True, slots=True)
class Served:
    """A broker process that serves. *said*: its output until then."""

    start_s: float
    said: str
    address: tuple[str, int]


def serving(data: Path, *options: str) -> contextlib.AbstractContextManager[Served]:
    """Run a broker on *data* without ZooKeeper; it ends with the block."""
    return started(["broker", "--data", str(data), "--id", "0", "--port", "0", "--flush", "interval:1000", *options])


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[Served]:
    """Run the `metaq` command with *words* until a broker serves; it ends with the block."""
    with tempfile.TemporaryFile() as out:
        began = time.monotonic()
        broker = subprocess.Popen([sys.executable, "-m", "meta_client.cli.main", *words], stdout=out, stderr=out)
        try:
            while not (ready := READY.search(said := _said(out.fileno()))):
                if broker.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                    raise RuntimeError(f"the broker did not start:\n{said}")
                time.sleep(0.005)
            yield Served(time.monotonic() - began, said, (ready[1], int(ready[2])))
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait()


def _said(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").read_text()


def _replayed(said: str) -> int:
    return int(said.partition("replayed ")[2].split()[0])


def _empty_start() -> float:
    with directory_for(0) as data:
        return _start(data)[0]


def _checksum_rate(data: Path) -> float:
    """Return bytes a second of reading every segment and computing its checksum."""
    size, start = 0, time.perf_counter()
    for path in sorted(data.glob("*.journal")):
        with path.open("rb") as file:
            while chunk := file.read(KIB * KIB):
                crc32(chunk)
                size += len(chunk)
    return size / (time.perf_counter() - start)
