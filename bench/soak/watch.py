"""Samples, one a second: the broker's memory, files, threads and processor time, its journal, and the load's delays."""

import contextlib
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peer import Peer
from bench.soak.load import Account
from meta_client.protocol.requests import Stats

_TICKS = 100  # of /proc a second, on every Linux that Python runs on


@dataclass(frozen=True, slots=True)
class Sample:
    """One second. Bytes in MB, delays in ms, processor time as a part of one core."""

    at_s: float
    rss: float
    anonymous: float
    files: int
    threads: int
    processor: float
    journal: float  # bytes of segments on disk
    segments: int
    consumed: int  # messages a second
    p50: float
    p99: float
    loop_delay: float  # the longest of the last minute, reported by the broker
    starved: float  # ms of this second in which the broker's loop waited for a processor


class Watch:
    """Takes samples of one broker."""

    def __init__(self, pid: int, data: Path, address: tuple[str, int], account: Account) -> None:
        self._process = Path(f"/proc/{pid}")
        self._peer = Peer(address)
        self._starved = self._starved_ms()
        self._data = data
        self._account = account
        self._start = self._last = time.monotonic()
        self._processor = self._processor_s()
        self._consumed = account.consumed

    def sample(self) -> Sample:
        """Sample the time since the last call; call it each second."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        processor, self._processor = self._processor_s() - self._processor, self._processor_s()
        consumed, self._consumed = self._account.consumed - self._consumed, self._account.consumed
        delays = self._account.take_delays() or [0.0]
        cuts = statistics.quantiles([*delays, delays[-1]], n=100)
        starved, self._starved = self._starved_ms() - self._starved, self._starved_ms()
        status = dict(line.split(":", 1) for line in (self._process / "status").read_text().splitlines())
        sizes: list[int] = []
        for path in self._data.glob("*.journal*"):
            with contextlib.suppress(FileNotFoundError):  # retention has deleted it since
                sizes.append(path.stat().st_size)
        return Sample(
            round(now - self._start, 1),
            int(status["VmRSS"].split()[0]) / 1000,
            int(status["RssAnon"].split()[0]) / 1000,
            len(list((self._process / "fd").iterdir())),
            int(status["Threads"]),
            round(processor / elapsed, 3),
            sum(sizes) / 1e6,
            len(sizes),
            round(consumed / elapsed),
            round(cuts[49], 2),
            round(cuts[98], 2),
            float(self._said()["loop_delay_ms_max_60s"]),
            round(starved, 1),
        )

    def _said(self) -> dict[str, str]:
        (answer,) = self._peer.ask(Stats("", 1))
        return dict(line.split(" ", 1) for line in answer.text.splitlines()[1:-1])

    def _starved_ms(self) -> float:
        return int((self._process / "schedstat").read_text().split()[1]) / 1e6

    def _processor_s(self) -> float:
        fields = (self._process / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
