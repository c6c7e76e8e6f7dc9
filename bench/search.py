"""`python -m bench.search`: how fast messages are searched for a key; what reading them costs is left out."""

import time

import click
from rich.console import Console
from rich.table import Table

from meta_broker.processors.find import RUNS_MAX
from meta_broker.store.partition_index import StoredRun
from meta_broker.store.search import look_for
from meta_client.protocol.messages import encode_body, encode_frame

MIB = 1024 * 1024
JOURNAL_BYTES = 64 * MIB
HEADER_BYTES = 80  # of a PUT record and its meta part
CASES = ((60, 1), (60, 600), (1000, 1), (1000, 60))  # bytes of a payload, messages of a record
MATCHES_MAX = 256


def stored(payload_bytes: int, per_run: int) -> tuple[bytes, list[StoredRun], int]:
    """A journal, the runs of its one partition, and how many messages that is; every thousandth has the key sought."""
    journal, runs, offset, count = bytearray(), list[StoredRun](), 0, 0
    while len(journal) < JOURNAL_BYTES:
        numbers = range(count, count + per_run)
        frames = b"".join(
            encode_frame(number, *encode_body(bytes(payload_bytes), f"customer-{number % 1000}")) for number in numbers
        )
        journal += b"\xff" * HEADER_BYTES
        runs.append(StoredRun(offset, len(journal), len(frames), per_run))
        journal += frames
        offset, count = offset + len(frames), count + per_run
    return bytes(journal), runs, count


def search_all(journal: bytes, runs: list[StoredRun]) -> tuple[int, float]:
    """How many were found, and the longest piece in seconds."""
    view = memoryview(journal)

    def read(lsn: int, size: int) -> memoryview:
        return view[lsn : lsn + size]

    offset, first, found, longest_s = 0, 0, 0, 0.0
    end = runs[-1].offset + runs[-1].bytes
    while offset < end:
        while runs[first].offset + runs[first].bytes <= offset:
            first += 1
        began = time.process_time()
        looked = look_for(b"customer-7", read, runs[first : first + RUNS_MAX], offset, MATCHES_MAX)
        longest_s = max(longest_s, time.process_time() - began)
        found, offset = found + len(looked.matches), looked.next_offset
    return found, longest_s


@click.command()
def search() -> None:
    """Messages and bytes a second of processor time, for small and large messages, alone and in batches."""
    table = Table("bytes", "messages a record", "messages/s", "MB/s", "longest piece")
    for payload_bytes, per_run in CASES:
        journal, runs, count = stored(payload_bytes, per_run)
        began = time.process_time()
        found, longest_s = search_all(journal, runs)
        took_s = time.process_time() - began
        assert found == len(range(7, count, 1000))
        rates = f"{count / took_s:,.0f}", f"{len(journal) / took_s / 1e6:,.0f}"
        table.add_row(f"{payload_bytes:,}", str(per_run), *rates, f"{longest_s * 1e3:.2f} ms")
    Console().print(table)


if __name__ == "__main__":
    search()
