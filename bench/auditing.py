"""An audit of a journal: how long it takes, and what its driver needs of memory, by the journal's size."""

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from bench.result import Result
from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.flush_mode import FlushMode
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_client.protocol.messages import HEADER_BYTES, encode_frame
from spark_jobs.audit.audit import audit_journal
from spark_jobs.source.session import spark_session

GB: Final = 10**9
AUDIT_BYTES: Final = 3 * GB // 2
SMALL_BYTES: Final = GB // 4  # of the smaller journal of the slope
SMALL_SEGMENT_BYTES: Final = 16 << 20  # a task each: as many as a journal of 24 GB has
SEGMENT_BYTES: Final = JournalConfig().segment_bytes
PROJECTED_SEGMENTS: Final = 100 * GB // SEGMENT_BYTES
PARTITIONS: Final = 4
PAYLOAD_BYTES: Final = 1024
PER_RECORD: Final = 100
BRANCH_EVERY: Final = 10  # records; of as many messages


@dataclass(slots=True)
class _Audited:
    seconds: float
    driver_mb: float  # at most, at the audit's steps: live objects of the JVM, and memory of Python
    records: int


def audit(case: str) -> Result:
    """Seconds for 1.5 GB on two cores: 1 KiB messages, 100 a record, a tenth of them in branches."""
    found = _audited(AUDIT_BYTES)
    detail = {"records": found.records, "mb_s": round(AUDIT_BYTES / found.seconds / 1e6), "driver_mb": found.driver_mb}
    return Result(case, found.seconds, "s", AUDIT_BYTES / GB, detail)


def driver_memory(case: str) -> Result:
    """MB that the driver of an audit would need for 100 GB, by the slope between two journals of small segments: it
    knows of segments alone. Tasks run in it, so a cluster's driver needs less."""
    _audited(SMALL_BYTES, SMALL_SEGMENT_BYTES)  # what Python imports is no slope
    small, large = (_audited(size, SMALL_SEGMENT_BYTES) for size in (SMALL_BYTES, AUDIT_BYTES))
    slope = (large.driver_mb - small.driver_mb) * SMALL_SEGMENT_BYTES / (AUDIT_BYTES - SMALL_BYTES)
    projected = large.driver_mb + max(slope, 0) * (PROJECTED_SEGMENTS - AUDIT_BYTES / SMALL_SEGMENT_BYTES)
    detail = {"small_mb": small.driver_mb, "large_mb": large.driver_mb, "mb_a_segment": round(slope, 3)}
    return Result(case, projected, "MB", small.driver_mb, detail)


def _audited(size: int, segment_bytes: int = SEGMENT_BYTES) -> _Audited:
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as directory,
        spark_session("local[2]", name="metaq bench") as spark,
    ):
        path = Path(directory) / "broker"
        _write_journal(path, size, segment_bytes)
        seen: list[float] = []
        began = time.perf_counter()
        report = audit_journal(spark, path, on_progress=lambda _: seen.append(_driver_mb(spark)))
        seconds = time.perf_counter() - began
        assert report.holds, report.sentence
        return _Audited(seconds, round(max([*seen, _driver_mb(spark)]), 1), report.totals.records)


def _driver_mb(spark: SparkSession) -> float:
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    gc.collect()
    runtime = jvm.java.lang.Runtime.getRuntime()
    (python_kb,) = [
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")
    ]
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6 + python_kb * 1024 / 1e6


def _write_journal(path: Path, size: int, segment_bytes: int) -> None:
    payload, record_bytes = bytes(PAYLOAD_BYTES), PER_RECORD * (HEADER_BYTES + PAYLOAD_BYTES)
    storage = DirectoryStorage.open_for_writing(path)
    try:
        config = JournalConfig(segment_bytes=segment_bytes, flush=FlushMode.parse("interval:1000"))
        store = JournalTransactionStore.open(storage, JournalIdentity("bench", 0), config, version="bench")
        try:
            for number in range(size // record_bytes):
                ids = range(number * PER_RECORD, (number + 1) * PER_RECORD)  # each once, or the audit fails
                frames = b"".join([encode_frame(each, 0, payload) for each in ids])
                partition = PartitionName("bench", number % PARTITIONS)
                if number % BRANCH_EVERY:
                    store.put(partition, [frames], len(frames), PER_RECORD)
                    continue
                branch = store.begin(XaKey(Xid.of(f"{number}", "b"), "bench"))
                store.transactional_put(branch, partition, [frames], len(frames), PER_RECORD)
                store.prepare(branch)
                store.commit(branch, one_phase=False)
            taken = store.snapshot()
            store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
        finally:
            store.close()
    finally:
        storage.close()
