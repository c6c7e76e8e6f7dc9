"""Spark reading messages: from a journal, by processor time of everything that takes part; as a stream, by delay."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench.environment import environment
from bench.result import Result
from journal.records.record import PartitionName
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.flush_mode import FlushMode
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_client import Client
from meta_client.protocol.messages import encode_frame
from spark_jobs.formats import register
from spark_jobs.source.session import spark_session

KIB: Final = 1024
TOPIC: Final = "bench"
JOURNAL_BYTES: Final = 4 << 30
PARTITIONS: Final = 4
WARM_UPS: Final = 2  # Spark compiles its queries, and its workers import the reader
TRIGGER_MS: Final = 500
MESSAGES: Final = 40  # of a stream
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")


def count(case: str, per_record: int) -> Result:
    """Count messages by offset alone: no payload is copied."""
    return _read(case, "offset BIGINT", "count(offset)", per_record)


def read(case: str, per_record: int) -> Result:
    """Sum the lengths of payloads: all of them reach the JVM."""
    return _read(case, "payload BINARY", "sum(length(payload))", per_record)


def stream_latency(case: str) -> Result:
    """Delay from the producer's acknowledgement to a row in foreachBatch, at a trigger of 500 ms."""
    delays_ms: list[float] = []

    def take(rows: DataFrame, _: int) -> None:
        found = rows.collect()
        now = time.time()
        delays_ms.extend((now - float(row.payload.decode())) * 1e3 for row in found)

    with environment("sync") as on, tempfile.TemporaryDirectory() as scratch, _spark("local[2]") as spark:
        source = spark.readStream.format("metaq").options(
            zookeeper=on.zookeeper, subscribe=TOPIC, startingOffsets="earliest"
        )
        writer = source.schema("payload BINARY").load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", scratch).trigger(processingTime=f"{TRIGGER_MS} milliseconds")
        query = writer.start()
        with Client(on.zookeeper) as client:
            producer = client.producer()
            for number in range(MESSAGES + WARM_UPS * 5):
                producer.send(TOPIC, b"%.6f" % time.time())
                if number == WARM_UPS * 5:
                    while len(delays_ms) < number:
                        time.sleep(0.05)
                    delays_ms.clear()
                time.sleep(0.15)
            while len(delays_ms) < MESSAGES - 1:
                time.sleep(0.05)
        query.stop()
    detail = {"max_ms": round(max(delays_ms)), "messages": len(delays_ms)}
    return Result(case, median(delays_ms), "ms", TRIGGER_MS, detail)


def _read(case: str, schema: str, expression: str, per_record: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as directory, _spark("local[1]") as spark:
        path = Path(directory) / "broker"
        messages = _write_journal(path, per_record)
        frame = spark.read.format("metaq").schema(schema).option("path", str(path)).load()
        for _ in range(WARM_UPS):
            frame.where("offset >= 0" if "offset" in schema else "payload IS NOT NULL").limit(1).collect()
        # First from the disk, then from the page cache, as the baseline is.
        from_disk, _ = _timed(frame.selectExpr(expression))
        used, elapsed = _timed(frame.selectExpr(expression))
        baseline = _copy_rate(path)
    detail = {
        "messages": messages,
        "clock_mb_s": round(JOURNAL_BYTES / elapsed / 1e6),
        "processor_s": round(used, 2),
        "from_disk_mb_s": round(JOURNAL_BYTES / from_disk / 1e6),
    }
    return Result(case, JOURNAL_BYTES / used / 1e6, "MB/s a core", baseline / 1e6, detail)


def _timed(frame: DataFrame) -> tuple[float, float]:
    """Return the processor seconds that *frame* takes, and those by the clock."""
    used, began = _processor_s(), time.perf_counter()
    frame.collect()
    return _processor_s() - used, time.perf_counter() - began


@contextlib.contextmanager
def _spark(master: str) -> Iterator[SparkSession]:
    with spark_session(master, name="metaq bench") as spark:
        register(spark)
        yield spark


def _write_journal(path: Path, per_record: int) -> int:
    """Write messages of 1 KiB, *per_record* in a record; returns how many."""
    frames = b"".join(encode_frame(number, 0, bytes(KIB)) for number in range(per_record))
    config = JournalConfig(flush=FlushMode.parse("interval:1000"))
    storage = DirectoryStorage.open_for_writing(path)
    try:
        store = JournalTransactionStore.open(storage, JournalIdentity("bench", 0), config, version="bench")
        try:
            records = JOURNAL_BYTES // len(frames)
            for number in range(records):
                store.put(PartitionName(TOPIC, number % PARTITIONS), [frames], len(frames), per_record)
        finally:
            store.close()
    finally:
        storage.close()
    return records * per_record


def _copy_rate(path: Path) -> float:
    """Return bytes a second of processor time at which the files are copied out of the page cache."""
    began, size = time.process_time(), 0
    for file in path.glob("*.journal"):
        with file.open("rb", buffering=0) as opened:
            while piece := opened.read(1 << 20):
                size += len(piece)
    return size / (time.process_time() - began)


def _processor_s() -> float:
    """Return processor seconds of this process and everything below it, ended children included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields: list[Any] = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks.get(pid, 0) for pid in mine) / _TICKS_S
