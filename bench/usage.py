"""Processor time of a load, by thread of the client and of the broker, page faults, and how idle the machine was.

All other processes of the benchmark, as databases and relays, count together: those that live from beginning to end.

Other programs on the machine change rates, and processor time hardly: it compares two versions where a clock can't.
"""

import contextlib
import os
import re
import resource
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_READER = re.compile(r"metaq meta://.*")
_RUNNER = re.compile(r"metaq .* runner.*")
Times = dict[str, int]  # by kind of thread, nanoseconds of user and system together


class Load:
    """Use of processors and memory by a load. `measured` makes it; complete once the block has ended."""

    def __init__(self, broker_pid: int | None) -> None:
        self._broker_pid = broker_pid
        self._before = self._now()
        self.threads: Times = {}
        self.faults = 0  # of the client: pages that were mapped
        self.idle = 0.0  # share of the machine's processors

    def end(self) -> None:
        """Note what was used since the beginning."""
        times, faults, (idle, all_) = self._now()
        times_before, faults_before, (idle_before, all_before) = self._before
        self.threads = {name: max(0, time - times_before.get(name, 0)) for name, time in times.items()}
        self.faults = faults - faults_before
        self.idle = (idle - idle_before) / max(1, all_ - all_before)

    def detail(self, messages: int) -> dict[str, Any]:
        """Return microseconds a message, of the client, of the broker and by thread, and the rest as it is."""
        us = {name: time / messages / 1e3 for name, time in self.threads.items()}
        by_process = {
            process: round(sum(each for name, each in us.items() if name.startswith(process)), 3)
            for process in ("client", "broker", "others")
        }
        return {f"{process}_us": each for process, each in by_process.items()} | {
            "us_by_thread": {name: round(each, 3) for name, each in us.items() if each >= 0.001},
            "client_faults": round(self.faults / messages, 4),
            "idle": round(self.idle, 2),
        }

    def _now(self) -> tuple[Times, int, tuple[int, int]]:
        names = {str(thread.native_id): _kind(thread.name) for thread in threading.enumerate()}
        times = _times(os.getpid(), lambda task: f"client {names.get(task, 'others')}")
        if (pid := self._broker_pid) is not None:
            times |= _times(pid, lambda task: "broker loop" if task == str(pid) else "broker others")
        times["others"] = sum(
            _times(each, lambda _: "others")["others"] for each in _descendants(os.getpid()) if each != pid
        )
        return times, resource.getrusage(resource.RUSAGE_SELF).ru_minflt, _machine()


@contextlib.contextmanager
def measured(broker_pid: int | None) -> Iterator[Load]:
    """Measure the block: threads that it starts must still run at its end, or their time is missing."""
    load = Load(broker_pid)
    yield load
    load.end()


class WholeRun:
    """Processor seconds of this process and of those it has waited for, and the machine's idle share, from now on."""

    def __init__(self) -> None:
        self._used, self._machine = _used_s(), _machine()

    def detail(self) -> dict[str, float]:
        """Return both until now."""
        (idle, all_), (idle_before, all_before) = _machine(), self._machine
        return {
            "run_processor_s": round(_used_s() - self._used, 1),
            "run_idle": round((idle - idle_before) / max(1, all_ - all_before), 2),
        }


def _used_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _kind(name: str) -> str:
    """Return what threads of one name do."""
    if _READER.fullmatch(name):
        return "reader"
    if _RUNNER.fullmatch(name):
        return "runners"
    if name == "MainThread" or name.startswith("Thread-"):
        return "callers"
    return "sender" if name == "metaq sender" else "others"


def _times(pid: int, name_of: Callable[[str], str]) -> Times:
    """Sum the times of the live threads by name."""
    found: defaultdict[str, int] = defaultdict(int)
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found[name_of(task.name)] += int((task / "schedstat").read_text().split()[0])
    return found


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below *pid*."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _machine() -> tuple[int, int]:
    """Return the ticks that all processors were idle, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
