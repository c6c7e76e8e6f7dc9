"""Blocking reads for an event loop: each on a thread, with a time limit, one at a time per key.

A broker that hangs costs its own row. Callers that ask for what is already being asked join that request, so that a
page that is refreshed does not pile up threads on a broker that does not answer.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from journal.errors import JournalError
from meta_client.protocol.errors import MetaError, one_line
from zk.errors import ZooKeeperError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

THREADS_MAX: Final = 32
RUNNING_MAX: Final = 256  # reads under way and waiting for a thread
LIMIT_S: Final = 3.0
ERRORS: Final = (MetaError, ZooKeeperError, JournalError, OSError)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A missing answer, and the reason. Shown as unknown, never as fine."""

    why: str

    def __bool__(self) -> bool:
        return False


class Reads:
    """Threads for blocking reads. Event loop only."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, "console")
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def call(self, key: Hashable, call: Callable[[], T], limit_s: float = LIMIT_S) -> T | Unknown:
        """Return what *call* returns on a thread, or what the same call returns that runs under *key* already; Unknown
        after *limit_s*, or if it raises one of ERRORS."""
        running = self._running.get(key)
        if running is None:
            if len(self._running) >= RUNNING_MAX:
                return Unknown("this console has too much to ask at once: try again")
            running = asyncio.get_running_loop().run_in_executor(self._pool, call)
            self._running[key] = running
            running.add_done_callback(lambda done: self._ended(key, done))
        try:
            answer: T = await asyncio.wait_for(asyncio.shield(running), limit_s)
        except TimeoutError:
            return Unknown(f"no answer in {limit_s:g} s")
        except ERRORS as error:
            return Unknown(one_line(error))
        return answer

    async def each(
        self, name: tuple[Hashable, ...], items: Iterable[K], call: Callable[[K], T], limit_s: float = LIMIT_S
    ) -> dict[K, T | Unknown]:
        """Return what *call* returns for each of *items*: all at once, each as by call()."""
        keys = tuple(items)
        calls = (self.call((*name, one), partial(call, one), limit_s) for one in keys)
        return dict(zip(keys, await asyncio.gather(*calls), strict=True))

    async def each_broker(
        self, name: tuple[Hashable, ...], ids: Iterable[int], call: Callable[[int, Callable[[str], None]], T]
    ) -> tuple[list[T], dict[int, str]]:
        """Return the answers of brokers, each asked by itself, and the reasons, by broker, why one is missing, or not
        whole as *call* tells its second argument."""

        def ask(broker_id: int) -> tuple[T, list[str]]:
            told: list[str] = []
            return call(broker_id, told.append), told

        answers = await self.each(name, ids, ask)
        told = {one: [it.why] if isinstance(it, Unknown) else it[1] for one, it in answers.items()}
        found = [it[0] for it in answers.values() if not isinstance(it, Unknown)]
        return found, {broker_id: "; ".join(lines) for broker_id, lines in told.items() if lines}

    def _ended(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # each caller that waited has it

    def close(self) -> None:
        """Start nothing more. Threads that still wait for an answer end by their own time limits."""
        self._pool.shutdown(wait=False, cancel_futures=True)
