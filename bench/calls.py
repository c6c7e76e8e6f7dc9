"""`python -m bench.calls`: cost of a send and of a branch to a client: calls, processor time, thread switches."""

import collections
import resource
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from bench.environment import environment
from bench.producing import KIB, branch, sender
from meta_client import Client

Operation = Callable[[], None]
COUNTED: Final = 200
ROUNDS: Final = 100
ROUND: Final = 20
WARM_UP_S: Final = 1.0


@click.command()
@click.option("--threads", type=click.IntRange(1, 256), default=64, show_default=True)
@click.option(
    "--seconds", type=float, default=4.0, show_default=True, help="Seconds for each operation in many threads."
)
def calls(threads: int, seconds: float) -> None:
    """Calls that an operation makes on its caller's thread, Python's and C's, and that thread's processor time, the
    least of some rounds; then, of many threads, the whole client's processor time, and how often it gave up a core."""
    operations: dict[str, Callable[[Client, int], Operation]] = {
        "send": lambda client, number: sender(client, b"x" * KIB),
        "branch": lambda client, number: branch(client, number, 1),
        "branch of ten messages": lambda client, number: branch(client, number, 10),
    }
    table = Table("of 1 KiB", "calls", "Python's", "one thread", f"{threads} threads", "switches", "a second")
    with environment("interval:100") as on, Client(on.zookeeper) as client:
        for name, make in operations.items():
            one = make(client, threads)
            called, python = _calls(one)
            alone = _least(one)
            many, switches, rate = _in_threads([make(client, number) for number in range(threads)], seconds)
            row = (
                f"{called:.0f}",
                f"{python:.0f}",
                f"{alone:.0f} us",
                f"{many:.0f} us",
                f"{switches:.1f}",
                f"{rate:,.0f}",
            )
            table.add_row(name, *row)
    Console().print(table)


def _calls(one: Operation) -> tuple[float, float]:
    """Count all calls, and those of Python functions."""
    counts: collections.Counter[str] = collections.Counter()

    def count(frame: FrameType, event: str, arg: object) -> None:
        counts[event] += 1

    for _ in range(COUNTED):
        one()
    sys.setprofile(count)
    try:
        for _ in range(COUNTED):
            one()
    finally:
        sys.setprofile(None)
    return (counts["call"] + counts["c_call"]) / COUNTED, counts["call"] / COUNTED


def _least(one: Operation) -> float:
    """Return the least microseconds of this thread's processor time: other load only lengthens it."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time_ns()
        for _ in range(ROUND):
            one()
        rounds.append((time.thread_time_ns() - start) / ROUND / 1e3)
    return min(rounds)


def _in_threads(operations: list[Operation], seconds: float) -> tuple[float, float, float]:
    """Return microseconds of the process's processor time, switches, and operations a second."""
    counts, stopping = [0] * len(operations), threading.Event()

    def run(number: int) -> None:
        while not stopping.is_set():
            operations[number]()
            counts[number] += 1

    running = [threading.Thread(target=run, args=(number,)) for number in range(len(operations))]
    for thread in running:
        thread.start()
    time.sleep(WARM_UP_S)
    before, done, start = resource.getrusage(resource.RUSAGE_SELF), sum(counts), time.perf_counter()
    time.sleep(seconds)
    after, done, elapsed = resource.getrusage(resource.RUSAGE_SELF), sum(counts) - done, time.perf_counter() - start
    stopping.set()
    for thread in running:
        thread.join()
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return used_s / done * 1e6, switches / done, done / elapsed


if __name__ == "__main__":
    calls()
