"""A disk that stops taking writes, a restart on what the page cache still shows, and then a power cut.

After a failed fsync Linux keeps the pages, readable and clean: a start that trusts them appends and acknowledges behind
records that are not on the disk. Each round plays that on a real ext4 (`tests/fixtures/failing_device.py`): under load
the device starts to fail and the broker stops by itself, or it is only killed; it is started again while the device
fails or is well again, may acknowledge more, and then the power is cut. What any client was told or has read in any of
these lives is compared with what is there afterwards.

METAQ_CRASH_ROUNDS rounds (default 2); METAQ_CRASH_SEED repeats the choices of a run that failed, though not its timing.
"""

import contextlib
import json
import mmap
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.ledger import Log, check
from tests.crash.workload import CONFIG, NO_CHECKPOINTS, PARTITIONS, Producer, Reader, end_of, read_back
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.forked import run_metaq

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "2"))
ROUNDS_PER_DEVICE = 5  # everything is read back after every start
DEVICE_MEBIBYTES = 256
PRODUCERS = 4
# Without checkpoints, and few segments: nothing makes ext4 commit, and a refused commit ends all writing to it.
QUIET = NO_CHECKPOINTS.replace("segment_bytes = 262144", "segment_bytes = 1048576")
FAULTS = ["journal writes", "writes", "kill", "forgotten flushes", "flushes"]
CUT = re.compile(r"torn tail truncated lsn=(\d+)")


class Story:
    """One directory through many lives: what clients know, and what they have read."""

    def __init__(self, device: FailingDevice, config: str, random: Random, seed: int, *, is_read: bool) -> None:
        self.broker = BrokerProcess(device.directory, None, config=config)
        self.seen: Counter[str] = Counter()  # how often each thing happened
        self._device = device
        self._is_read = is_read  # somebody else has its segments mapped while it starts again
        self._random = random
        self._producers = [Producer(number, seed) for number in range(PRODUCERS)]
        self._served: Log = {name: [] for name in PARTITIONS}
        self._durable = 0  # an LSN: all below was served, and so has to be on the disk

    def begin(self) -> None:
        self.broker.start()
        self._judge()

    def play(self, fault: str) -> None:
        """Play one round. The broker serves before and after."""
        self._device.slow_down(self._random.choice([0.0, 0.0, 0.002]))
        with self._load():
            time.sleep(self._random.uniform(0.05, 0.4))
            if fault != "kill":
                self._fail(fault)
                assert self.broker.wait() == 1
        with self._mapped() if self._is_read else contextlib.nullcontext():
            self._restarts(fault)
        self._device.cut_power(self._random.choice([0.0, 0.5, 1.0]), self._random.randrange(2**32))
        self._device.power_on()
        self._check_tail()
        assert self.broker.maybe_start(), self.broker.log
        self._judge()

    def _restarts(self, fault: str) -> None:
        """Start the broker again and again, on the failing device and on a healed one."""
        # A start that fsyncs a name has ext4 commit, which ends all writing to it once the device refuses that.
        for _ in range(self._random.choice([0, 1, 2] if fault == "journal writes" else [0, 0, 0, 1])):
            self.seen["served before it was healed"] += self._restart()
        self._device.heal()
        for _ in range(self._random.choice([0, 1, 2] if fault == "kill" else [1, 1, 2])):
            if self._restart():
                self.seen["served before the cut"] += 1
            else:
                assert "Read-only file system" in self.broker.log.splitlines()[-1], self.broker.log

    def _fail(self, fault: str) -> None:
        match fault:
            case "writes":
                self._device.refuse_writes()
            case "journal writes":
                self.broker.pause()  # its files keep their names meanwhile
                self._device.refuse_writes(self.broker.data.glob("*.journal*"))
                self.broker.resume()
            case _:
                self._device.refuse_flushes(forgets=fault == "forgotten flushes")

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """Hold what is cached of the segments in the memory of this process, as a job that reads the journal does: no
        advice drops it from the page cache meanwhile."""
        with contextlib.ExitStack() as stack:
            for path in self.broker.data.glob("*.journal"):
                file = stack.enter_context(path.open("rb"))
                mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
                mapped[:: mmap.PAGESIZE]  # each page once
            yield

    def _restart(self) -> bool:
        """Start the broker, compare what it shows, and kill it under load. False: it did not start."""
        before = len(self.broker.log)
        if not self.broker.maybe_start():
            return False
        for lsn in CUT.findall(self.broker.log[before:]):
            assert int(lsn) >= self._durable, f"a torn tail at LSN {lsn}, though all below {self._durable} was served"
        self._judge()
        with self._load():
            time.sleep(self._random.uniform(0.02, 0.2))
        return True

    @contextlib.contextmanager
    def _load(self) -> Iterator[None]:
        """Producers and a reader work meanwhile; at the end the broker is killed, if it still runs."""
        reader = Reader()
        ends = {name: end_of(messages) for name, messages in self._served.items()}
        with ThreadPoolExecutor(PRODUCERS + 1) as threads:
            tasks = [threads.submit(producer.run, self.broker.client) for producer in self._producers]
            tasks.append(threads.submit(reader.run, self.broker.client, ends))
            try:
                yield
            finally:
                self.broker.kill()
        for task in tasks:
            task.result()
        for name, messages in reader.seen.items():
            self._served[name] += messages

    def _judge(self) -> None:
        """Compare what the broker shows with what clients were told and have read, in this life and all before."""
        log, in_doubt = read_back(self.broker.client)
        for name, messages in self._served.items():
            assert log[name][: len(messages)] == messages, f"{name}: what was read before is gone, or another"
        check([producer.ledger for producer in self._producers], log, in_doubt)
        self._served = log
        self._durable = self._report()["end"]

    def _check_tail(self) -> None:
        """Before the broker starts: an operator asks whether the journal is whole."""
        report = self._report()
        told = f"{report['verdict']} at LSN {report['end']} ({report['reason']})"
        assert report["sound"], told
        assert report["end"] >= self._durable, f"{told}, though all below {self._durable} was served"

    def _report(self) -> dict[str, Any]:
        done = run_metaq("journal", "check", str(self.broker.data), "--json")
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@pytest.mark.timeout(600 + 20 * ROUNDS)
@pytest.mark.parametrize(
    ("config", "is_read"),
    [
        pytest.param(CONFIG, False, id="checkpoints"),
        pytest.param(QUIET, False, id="quiet"),
        pytest.param(QUIET, True, id="quiet, and read by others"),
    ],
)
def test_what_was_acknowledged_survives_a_disk_that_fails_a_restart_and_a_power_cut(
    config: str, is_read: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    seen: Counter[str] = Counter()
    for first in range(0, ROUNDS, ROUNDS_PER_DEVICE):
        with failing_device(tmp_path / str(first), DEVICE_MEBIBYTES) as device:
            story = Story(device, config, random, seed + first, is_read=is_read)
            try:
                story.begin()
                for number in range(first, min(first + ROUNDS_PER_DEVICE, ROUNDS)):
                    fault = FAULTS[number % len(FAULTS)]
                    with capfd.disabled():
                        print(f"\rround {number + 1} of {ROUNDS}, {fault}: {dict(seen + story.seen)}", end=" ")
                    story.play(fault)
            finally:
                story.broker.kill()
            seen += story.seen
    assert seen["served before the cut"], "no restart on what the page cache showed: nothing was tried"
