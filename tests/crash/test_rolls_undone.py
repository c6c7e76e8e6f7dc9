"""A kill or an error between the rename of a new segment and the fsync of its directory, a restart, and a power cut.

The rename is in memory then and not on the disk. A start that finds the segment under its name, appends to it and
acknowledges has to fsync the directory first: else the power cut takes the name back, and the records with it. The file
system is a real ext4 (`tests/fixtures/failing_device.py`), which keeps a name only if somebody's fsync says so; strace
stops the broker at the right call. There are no checkpoints here, and a segment never gets half full after the restart:
either would fsync a new file, and with that all names.

METAQ_CRASH_ROUNDS rounds (default 2); METAQ_CRASH_SEED repeats the choices of a run that failed, though not its timing.
"""

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from journal.wal.storage import TMP_SUFFIX
from tests.crash.workload import NO_CHECKPOINTS
from tests.fixtures.broker import BrokerProcess, ExecutedBroker
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.forked import run_metaq
from tests.fixtures.strace import injected, need_strace
from tests.fixtures.wire import WireClient

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "2"))
FAULTS = {"signal=KILL": -9, "error=EIO": 1}  # by what strace injects: the broker's exit status
BODY_BYTES = 1000
ROUNDS_PER_DEVICE = 20
CALL = re.compile(r"(?P<name>fsync|pwrite64|pwritev2?)\(\d+<(?P<path>[^>]*)>")
PUTS_AFTER = 50  # of BODY_BYTES, after the restart: less than half a segment


class Story:
    """One directory through many lives: what a client was told, and what it has read."""

    def __init__(self, device: FailingDevice, random: Random) -> None:
        self.broker = BrokerProcess(device.directory, None, config=NO_CHECKPOINTS)
        self.undone = 0  # power cuts that took a segment's name back
        self._device = device
        self._random = random
        self._told: dict[int, bytes] = {}  # bodies that were acknowledged, by offset
        self._served: list[tuple[int, bytes]] = []  # what was read last
        self._count = 0

    def play(self, fault: str, *, restarts: bool) -> None:
        """Stop the broker in a roll, put some more after a restart if it *restarts*, and cut the power."""
        self.broker.start()
        self._judge()
        with injected(self.broker.pid, self.broker.data, "fsync", f"{fault}:when=1"):
            self._put(1_000_000)
            assert self.broker.wait() == FAULTS[fault]
        if restarts:
            self.broker.start()
            self._judge()
            self._put(self._random.randint(1, PUTS_AFTER))
            self.broker.kill()
        self._device.cut_power(self._random.choice([0.0, 0.5, 1.0]), self._random.randrange(2**32))
        self._device.power_on()
        self.undone += any(self.broker.data.glob(f"*.journal{TMP_SUFFIX}"))
        self._check_report()
        self.broker.start()
        self._judge()
        self.broker.kill()

    def _put(self, most: int) -> None:
        """One after the other, until the broker dies if there are enough."""
        with contextlib.suppress(ConnectionError), WireClient(self.broker.port) as client:
            for _ in range(most):
                self._count += 1
                body = b"%d." % self._count + bytes(BODY_BYTES)
                place = client.put("orders", 0, body)
                assert place.offset is not None
                self._told[place.offset] = body

    def _judge(self) -> None:
        """Compare what the broker shows with what was told and read in all lives."""
        with WireClient(self.broker.port) as client:
            shown = [(offset, message.payload) for offset, message in client.read_all("orders", 0)]
        assert shown[: len(self._served)] == self._served, "what was read before is gone, or another"
        by_offset = dict(shown)
        lost = [offset for offset, body in self._told.items() if by_offset.get(offset) != body]
        assert not lost, f"acknowledged, and gone or another: offsets {lost}"
        self._served = shown

    def _check_report(self) -> None:
        done = run_metaq("journal", "check", str(self.broker.data), "--json")
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["sound"], report


@pytest.mark.timeout(600 + 20 * ROUNDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_acknowledged_survives_a_roll_that_a_power_cut_undoes(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    need_strace()
    random = Random(seed)
    undone: Counter[bool] = Counter()
    for first in range(0, ROUNDS, ROUNDS_PER_DEVICE):
        with failing_device(tmp_path / str(first)) as device:
            story = Story(device, random)
            try:
                for number in range(first, min(first + ROUNDS_PER_DEVICE, ROUNDS)):
                    restarts = number % 3 != 0
                    with capfd.disabled():
                        print(f"round {number + 1} of {ROUNDS}, {fault}")
                    before = story.undone
                    story.play(fault, restarts=restarts)
                    undone[restarts] += story.undone - before
            finally:
                story.broker.kill()
    assert undone[False], "no power cut took a name back, not even without a restart: nothing was tried"


def test_a_file_that_holds_records_is_not_deleted_because_of_its_name(tmp_path: Path) -> None:
    """A power cut may have taken the name back from a segment to which an older metaq, or a disk that lied, had
    acknowledged: a start may take it, set it aside or refuse, and may not delete it."""
    broker = BrokerProcess(tmp_path / "broker", None, config=NO_CHECKPOINTS)
    try:
        broker.start()
        bodies = [b"%d." % number + bytes(BODY_BYTES) for number in range(300)]  # more than a segment
        with WireClient(broker.port) as client:
            for body in bodies:
                client.put("orders", 0, body)
        broker.kill()
        newest = max(broker.data.glob("*.journal"))
        newest.rename(newest.with_name(newest.name + TMP_SUFFIX))
        broker.maybe_start()
    finally:
        broker.kill()
    left = b"".join(file.read_bytes() for file in broker.data.rglob("*") if file.is_file())
    lost = [number for number, body in enumerate(bodies) if body not in left]
    assert not lost, f"of {len(bodies)} acknowledged messages no file holds {len(lost)}"


class TracedBroker(ExecutedBroker):
    """A broker with a trace of what it fsyncs and writes."""

    @property
    def trace(self) -> Path:
        return self.config_path.with_suffix(".trace")

    def command(self) -> list[str]:
        strace = ["strace", "-D", "-f", "-y", "-qq", "--seccomp-bpf", "-o", str(self.trace)]
        return [*strace, "-e", "trace=fsync,pwrite64,pwritev,pwritev2", *super().command()]

    def fsynced_before_appending(self) -> set[Path]:
        """Directories and files that this life fsynced before it wrote to a segment for the first time."""
        found = set()
        for line in self.trace.read_text().splitlines():
            if (call := CALL.search(line)) is None:
                continue
            if call["name"] == "fsync":
                found.add(Path(call["path"]))
            elif call["path"].endswith(".journal"):
                return found
        raise AssertionError(f"it wrote to no segment: {self.trace.read_text()}")


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedBroker]:
    """A broker whose directory is to be made, and two above it."""
    need_strace()
    broker = TracedBroker(tmp_path.resolve() / "broker", None, config=NO_CHECKPOINTS)
    broker.data = tmp_path.resolve() / "made" / "by" / "broker"
    try:
        yield broker
    finally:
        broker.kill()


# ext4 stores every name with the fsync of any new file. Other file systems need not: hence by the calls.


def test_the_first_start_fsyncs_above_each_directory_that_it_makes(traced: TracedBroker) -> None:
    traced.start()
    traced.kill()
    assert traced.fsynced_before_appending() >= {traced.data, *list(traced.data.parents)[:3]}


def test_each_start_fsyncs_the_directory_before_it_appends(traced: TracedBroker) -> None:
    traced.start()
    traced.kill()
    traced.start()
    traced.kill()
    assert traced.data in traced.fsynced_before_appending()
