"""The broker's end of a filter's process: starts it on demand, and kills it when it takes too long."""

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process

from meta_broker.filters.emulation import FrameVerdict
from meta_broker.filters.pipe import ANSWER, LENGTH, QUESTION, TEXT_BYTES_MAX, VERDICT

log = logging.getLogger(__name__)

START_S = 10.0  # for the interpreter and the filter's imports
REST_S = 5.0  # before a failed filter is started again


class FilterFailed(Exception):
    """A filter gave no verdict; the text gives the reason and the remedy."""


class FilterProcess:
    """Process of one filter. One request at a time; loop thread only."""

    def __init__(self, name: str, seconds_max: float) -> None:
        self._name = name
        self._seconds_max = seconds_max
        self._process: Process | None = None
        self._failure = ""
        self._rests_until = 0.0
        self._is_stopped = False
        self._raised = ""  # its last exception, logged once

    async def judge(self, group: str, chunk: bytes) -> list[FrameVerdict]:
        """Return the filter's verdict on each whole message in *chunk*. Raises FilterFailed."""
        if self._is_stopped or time.monotonic() < self._rests_until:
            raise FilterFailed(self._failure)
        try:
            if (process := self._process) is None:
                process = await asyncio.wait_for(self._start(), START_S)
            return await asyncio.wait_for(self._judge(process, group, chunk), self._seconds_max)
        except TimeoutError:
            await self._give_up(f"took longer than filter_seconds_max {self._seconds_max:g}: mend or remove it")
        except (asyncio.IncompleteReadError, OSError):
            await self._give_up("ended: the broker's log shows what it wrote last")
        except ValueError as error:
            await self._give_up(f"answered what is no answer ({error}): it must leave the pipe alone")
        raise FilterFailed(self._failure)

    async def _start(self) -> Process:
        command = (sys.executable, "-m", "meta_broker.filters.worker", self._name)
        self._process = process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        if self._is_stopped:
            await self.close()  # the read below fails
        assert process.stdout is not None
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        if length:
            text = await process.stdout.readexactly(min(length, TEXT_BYTES_MAX))
            await self._give_up(f"cannot be used: {text.decode(errors='replace')}")
            raise FilterFailed(self._failure)
        log.info("filter started name=%s pid=%d", self._name, process.pid)
        return process

    async def _judge(self, process: Process, group: str, chunk: bytes) -> list[FrameVerdict]:
        assert process.stdin is not None
        assert process.stdout is not None
        name = group.encode()
        process.stdin.writelines([QUESTION.pack(len(name), len(chunk)), name, chunk])
        await process.stdin.drain()
        count, length = ANSWER.unpack(await process.stdout.readexactly(ANSWER.size))
        if count * VERDICT.size > len(chunk) or length > TEXT_BYTES_MAX:
            raise ValueError(f"{count} verdicts on {len(chunk)} bytes")
        said = await process.stdout.readexactly(count * VERDICT.size)
        raised = (await process.stdout.readexactly(length)).decode(errors="replace")
        if raised and raised != self._raised:
            log.error("filter raised, messages rejected name=%s group=%s error=%s", self._name, group, raised)
        self._raised = raised
        verdicts = [FrameVerdict(end, accepted == 1) for end, accepted in VERDICT.iter_unpack(said)]
        ends = [0, *(verdict.end for verdict in verdicts)]
        if any(after <= before for before, after in itertools.pairwise(ends)) or ends[-1] > len(chunk):
            raise ValueError("messages that end before they begin, or outside")
        return verdicts

    async def _give_up(self, why: str) -> None:
        failure = f"filter {self._name!r} {why}"
        if not self._is_stopped:
            if failure != self._failure:
                log.error("filter failed: %s", failure)
            self._failure, self._rests_until = failure, time.monotonic() + REST_S
        await self.close()

    async def stop(self) -> None:
        """Kill the process and start no other: present and later requests raise FilterFailed. Idempotent."""
        self._is_stopped, self._failure = True, f"filter {self._name!r} has ended: the broker is stopping, ask later"
        await self.close()

    async def close(self) -> None:
        """Kill the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
