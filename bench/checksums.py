"""`python -m bench.checksums`: CRC-32 of zlib beside the one that metaq uses, call overhead included."""

import os
import timeit
import zlib
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table

from journal.checksum import crc32

SIZES = (20, 100, 1024, 64 * 1024, 256 * 1024)
BYTES_A_ROUND = 32 * 1024 * 1024
CALLS_MAX = 100_000
ROUNDS = 5


@click.command()
def checksums() -> None:
    """Print nanoseconds a call, the fastest of five rounds, for data of several sizes."""
    table = Table("bytes", "zlib", "metaq", "times as fast")
    for size in SIZES:
        data, calls = os.urandom(size), min(CALLS_MAX, BYTES_A_ROUND // size)
        slow, fast = _fastest_ns(zlib.crc32, data, calls), _fastest_ns(crc32, data, calls)
        table.add_row(f"{size:,}", f"{slow:,.0f} ns", f"{fast:,.0f} ns", f"{slow / fast:.1f}")
    Console().print(table)


def _fastest_ns(crc: Callable[[bytes], int], data: bytes, calls: int) -> float:
    return min(timeit.repeat(lambda: crc(data), number=calls, repeat=ROUNDS)) / calls * 1e9


if __name__ == "__main__":
    checksums()
