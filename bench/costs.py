"""`python -m bench.costs`: processor time of a message, by thread, while one process produces."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.cases import send_for
from bench.environment import environment
from meta_client import Client

_TICKS = os.sysconf("SC_CLK_TCK")
Times = dict[str, tuple[float, float]]  # by thread, user and system seconds


@click.command()
@click.option("--size", type=click.IntRange(0, 1 << 20), default=100, show_default=True, help="Bytes of a message.")
@click.option("--flush", default="interval:100", show_default=True)
@click.option("--seconds", type=float, default=5.0, show_default=True)
def costs(size: int, flush: str, seconds: float) -> None:
    """Microseconds of processor time that a message of send_async costs."""
    with environment(flush) as on, Client(on.zookeeper) as client:
        producer, payload = client.producer(), b"x" * size
        send_for(producer, payload, seconds / 5)
        before = _client_times(), _broker_times(on.broker_pid)
        start = time.perf_counter()
        sent = send_for(producer, payload, seconds)
        elapsed = time.perf_counter() - start
        after = _client_times(), _broker_times(on.broker_pid)
    table = Table("thread", "user", "system", title=f"{sent / elapsed:,.0f} messages/s of {size} bytes, {flush}")
    for process, old, new in zip(("client", "broker"), before, after, strict=True):
        for thread, times in new.items():
            user, system = ((now - then) / sent * 1e6 for now, then in zip(times, old.get(thread, (0, 0)), strict=True))
            if user + system >= 0.005:
                table.add_row(f"{process}: {thread}", f"{user:.2f} us", f"{system:.2f} us")
    Console().print(table)


def _client_times() -> Times:
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    return _times(os.getpid(), lambda task: names.get(task, "others"))


def _broker_times(pid: int) -> Times:
    return _times(pid, lambda task: "loop" if task == str(pid) else "writer, fsync, segments")


def _times(pid: int, name_of: Callable[[str], str]) -> Times:
    """Sum the times of the live threads by name."""
    found: Times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        user, system = found.get(name := name_of(task.name), (0.0, 0.0))
        found[name] = user + int(fields[11]) / _TICKS, system + int(fields[12]) / _TICKS
    return found


if __name__ == "__main__":
    costs()
