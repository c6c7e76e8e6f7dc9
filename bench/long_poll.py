"""Processor time of a broker at which consumers wait."""

import asyncio
import os
import resource
import time
from pathlib import Path

from bench.environment import Environment, environment
from bench.result import Result
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Fetch, Request, Version
from meta_client.protocol.responses import Data

CONSUMERS = 1_000
FETCH_WAIT_MS = 15_000  # a consumer's default
BEAT_S = 10.0  # idle time before a client sends a heartbeat
SETTLE_S = 3.0
WATCH_S = 20.0  # each fetch comes back and is sent again, each connection beats twice
CONFIG = f"[topics.bench]\npartitions = {CONSUMERS}\n"


def processor_share(case: str) -> Result:
    """Measure percent of a core that the broker needs while 1,000 consumers, a connection each, wait for messages.

    Each repeats its fetch whenever its wait ends, and sends heartbeats as a client does. The baseline is the same
    connections and heartbeats without fetches.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONSUMERS)), hard))
    with environment("sync", CONFIG) as on:
        idle, _ = asyncio.run(_watch(on, fetches=False))
        busy, answers = asyncio.run(_watch(on, fetches=True))
    detail = {"connections": CONSUMERS, "answers_s": round(answers / WATCH_S, 1)}
    return Result(case, busy, "% of a core", max(idle, 0.05), detail)


async def _watch(on: Environment, *, fetches: bool) -> tuple[float, int]:
    """Return the broker's share of a core while the consumers wait, and the number of its replies meanwhile."""
    consumers = [_Consumer(number, fetches=fetches) for number in range(CONSUMERS)]
    tasks = [asyncio.create_task(consumer.run(*on.address)) for consumer in consumers]
    try:
        await asyncio.sleep(SETTLE_S)
        answers, spent, start = sum(c.answers for c in consumers), _cpu_s(on.broker_pid), time.monotonic()
        await asyncio.sleep(WATCH_S)
        spent, elapsed = _cpu_s(on.broker_pid) - spent, time.monotonic() - start
        failed = [task for task in tasks if task.done()]
        if failed:
            raise RuntimeError(f"{len(failed)} consumers ended: {failed[0].exception()!r}")
        return 100 * spent / elapsed, sum(c.answers for c in consumers) - answers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Consumer:
    """One connection that always has a fetch waiting."""

    def __init__(self, number: int, *, fetches: bool) -> None:
        self._number = number
        self._fetches = fetches
        self.answers = 0

    async def run(self, host: str, port: int) -> None:
        await asyncio.sleep(self._number / CONSUMERS * SETTLE_S / 2)  # not all in the same moment
        reader, writer = await asyncio.open_connection(host, port)
        decoder = ResponseDecoder()
        try:
            writer.write(_encoded(self._fetch() if self._fetches else Version(0)))
            while True:
                try:
                    chunk = await asyncio.wait_for(reader.read(65_536), BEAT_S)
                except TimeoutError:
                    writer.write(_encoded(Version(0)))
                    continue
                if not chunk:
                    raise ConnectionError("the broker closed it")
                for response in decoder.receive_data(chunk):
                    self.answers += 1
                    if isinstance(response, Data):
                        writer.write(_encoded(self._fetch()))
        finally:
            writer.close()

    def _fetch(self) -> Fetch:
        return Fetch("bench", f"group-{self._number}", self._number, 0, 65_536, 1, FETCH_WAIT_MS, 1, 1)


def _encoded(request: Request) -> bytes:
    return b"".join(encode_request(request))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
