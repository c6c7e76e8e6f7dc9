"""A process that appends is killed at random moments, several times over in one directory.

METAQ_CRASH_ROUNDS sets how often, METAQ_CRASH_SEED what is done in which order (not when the kill comes).
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from journal.records.record import PartitionName
from journal.records.xid import parse_key
from journal.repair.check import check
from journal.state.inspection import read_checkpoints
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from tests.crash.journal_child import SEGMENT_BYTES
from tests.fixtures.journals import Index, open_store
from tests.fixtures.ledger import Event, Ledger, Truth, Verb, found_by

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "10"))
SEED = int(os.environ.get("METAQ_CRASH_SEED", "1"))
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
LIFE_S_MAX = 0.3
SECONDS_A_ROUND = 10
LIVES_A_DIRECTORY = 10  # then a new one: each start here reads a journal from its birth


class Child:
    """One life of the appending process, and what it said."""

    def __init__(self, directory: Path, seed: int, flush: str, number: int) -> None:
        command = [sys.executable, "-m", "tests.crash.journal_child", str(directory), str(seed), flush, str(number)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        self._said = b""

    def live_until_killed(self, life_s: float, *, from_ready: bool) -> tuple[list[str], str]:
        """Kill it *life_s* after it is ready, or after its process began. Returns its lines and its stderr."""
        process = self._process
        assert process.stdout is not None
        try:
            if from_ready:
                self._listen(time.monotonic() + START_TIMEOUT_S, until=b"ready\n")
            self._listen(time.monotonic() + life_s)
        finally:
            process.send_signal(signal.SIGKILL)
            rest, errors = process.communicate(timeout=START_TIMEOUT_S)
        self._said += rest
        whole, _, _ = self._said.rpartition(b"\n")
        return whole.decode().splitlines(), errors.decode()

    def _listen(self, deadline: float, until: bytes | None = None) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while (left := deadline - time.monotonic()) > 0 and (until is None or until not in self._said):
            if select.select([fd], [], [], left)[0]:
                piece = os.read(fd, 65536)
                if not piece:
                    return
                self._said += piece


def event_of(text: str, end: int) -> Event:
    said = json.loads(text)
    name = PartitionName(*said["name"]) if said["name"] else None
    key = parse_key(said["key"]) if said["key"] else None
    return Event(end, Verb[said["verb"]], said["branch"], key, name, said["data"].encode())


def note(lines: list[str], ledger: Ledger) -> tuple[int, str | None]:
    """Put what a child said into the ledger. Returns what was acknowledged, and an event of unknown fate."""
    acknowledged, pending = 0, None
    for line in lines:
        word, _, rest = line.partition(" ")
        match word:
            case "sent":
                pending = rest
            case "appended":
                assert pending is not None
                ledger.add(event_of(pending, int(rest)))
                pending = None
            case "acknowledged":
                acknowledged = int(rest)
            case _:
                assert word == "ready"
    return acknowledged, pending


def possible_truths(ledger: Ledger, end: int, pending: str | None) -> list[tuple[Ledger, Truth]]:
    """Return the states allowed if the records end at *end*: with and without the event sent last."""
    other = Ledger()
    other.events = list(ledger.events)
    if pending is not None and (not other.events or other.events[-1].end < end):
        other.add(event_of(pending, end))
    return [(each, each.after_start(end)) for each in (ledger, other)]


@pytest.mark.timeout(600 + SECONDS_A_ROUND * ROUNDS)
@pytest.mark.parametrize("flush", ["sync", "interval:50"])
def test_whatever_was_acknowledged_is_there_after_a_kill(tmp_path: Path, flush: str) -> None:
    random = Random(SEED)
    ledger = Ledger()
    acknowledged_events = lives = 0
    for round_number in range(ROUNDS):
        print(f"METAQ_CRASH_SEED={SEED} flush={flush} round={round_number}")
        directory = tmp_path / str(round_number // LIVES_A_DIRECTORY)
        if round_number % LIVES_A_DIRECTORY == 0:
            ledger = Ledger()
        child = Child(directory, random.randrange(2**32), flush, round_number * 1_000_000 + 1)
        from_ready = random.random() < 0.8
        lines, errors = child.live_until_killed(random.uniform(0, LIFE_S_MAX), from_ready=from_ready)
        assert errors == ""
        acknowledged, pending = note(lines, ledger)
        lives += "ready" in lines
        acknowledged_events += sum(line.startswith("acknowledged") for line in lines)
        ledger = judge(directory, ledger, acknowledged, pending)
    assert lives >= ROUNDS // 2
    assert acknowledged_events > ROUNDS, "the children hardly did anything"


def judge(directory: Path, ledger: Ledger, acknowledged: int, pending: str | None) -> Ledger:
    """Start on what the kill left; returns the ledger of what is there now."""
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        segments = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
        if len(segments):
            report = check(segments, read_checkpoints(storage))
            assert report.is_sound, report
        segments.close()
        index = Index()
        store = open_store(storage, sink=index, segment_bytes=SEGMENT_BYTES)
        end = store.recovered.end
        assert end >= acknowledged, "acknowledged bytes are gone"
        found = found_by(store, index)
        truths = possible_truths(ledger, end, pending)
        matching = [each for each, truth in truths if truth == found]
        store.close()
        assert matching, f"LSN {end}: neither with nor without the event that was sent last"
        matching[0].restart(end)
        return matching[0]
    finally:
        storage.close()
