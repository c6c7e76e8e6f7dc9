"""`python -m bench.search`: rate of a search of messages for a key, without the cost of reading them."""

import time

import click
from rich.console import Console
from rich.table import Table

from meta_broker.store.key_indexer import RUNS_MAX
from meta_broker.store.partition_index import StoredExtent
from meta_broker.store.search import search_step
from meta_client.protocol.messages import encode_body, encode_frame

MIB = 1024 * 1024
JOURNAL_BYTES = 64 * MIB
HEADER_BYTES = 80  # of a PUT record and its meta part
CASES = ((60, 1), (60, 600), (1000, 1), (1000, 60))  # bytes of a payload, messages of a record
MATCHES_MAX = 256


def stored(payload_bytes: int, per_run: int) -> tuple[bytes, list[StoredExtent], int]:
    """Return a journal, the runs of its one partition, and the number of messages; every thousandth has the key."""
    journal, runs, offset, count = bytearray(), list[StoredExtent](), 0, 0
    while len(journal) < JOURNAL_BYTES:
        numbers = range(count, count + per_run)
        frames = b"".join(
            encode_frame(number, *encode_body(bytes(payload_bytes), f"customer-{number % 1000}")) for number in numbers
        )
        journal += b"\xff" * HEADER_BYTES
        runs.append(StoredExtent(offset, len(journal), len(frames), per_run))
        journal += frames
        offset, count = offset + len(frames), count + per_run
    return bytes(journal), runs, count


def search_all(journal: bytes, runs: list[StoredExtent]) -> tuple[int, float]:
    """Return the number of matches, and the longest piece in seconds."""
    view = memoryview(journal)

    def read(lsn: int, size: int) -> memoryview:
        return view[lsn : lsn + size]

    offset, first, found, longest_s = 0, 0, 0, 0.0
    end = runs[-1].offset + runs[-1].bytes
    while offset < end:
        while runs[first].offset + runs[first].bytes <= offset:
            first += 1
        began = time.process_time()
        step = search_step(b"customer-7", read, runs[first : first + RUNS_MAX], offset, MATCHES_MAX)
        longest_s = max(longest_s, time.process_time() - began)
        found, offset = found + len(step.matches), step.next_offset
    return found, longest_s


@click.command()
def search() -> None:
    """Print messages and bytes a second of processor time, for small and large messages, alone and in batches."""
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
