"""One disk sector becomes unreadable: a request that needs it gets an error naming the place, all others succeed.

The sector is a real one, below a real ext4 (`tests/fixtures/failing_device.py`): a read of its page is EIO, an access
through memory SIGBUS. It lies in a closed segment, in the tail, in a checkpoint or in an index file of a real broker.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.messages import HEADER_BYTES, iter_frames
from meta_client.protocol.requests import TransactionVerb
from meta_client.protocol.responses import Response, Result, Value
from tests.crash.workload import CONFIG, NO_CHECKPOINTS
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient

MESSAGES = 300  # four segments, and so not yet as many as a live branch may lie behind
DAMAGED = 100  # in the second
IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")
PAGE = 4096
BODIES = [b"%03d." % number + bytes(3000) for number in range(MESSAGES)]
FRAME_BYTES = HEADER_BYTES + len(BODIES[0])
RECORD_BYTES = 3104  # header, what PUT says, the frame, and what fills it up to eight


class Stored(NamedTuple):
    """Position of a message's record."""

    offset: int
    file: Path
    position: int
    lsn: int

    def is_in(self, page: int) -> bool:
        """Return whether any part of it lies in the page of its file that begins at *page*."""
        return self.position < page + PAGE and page < self.position + RECORD_BYTES


class Directory:
    """The data of a stopped broker with MESSAGES in orders-0, where sectors can become unreadable, and a copy of it."""

    def __init__(self, device: FailingDevice, folder: Path) -> None:
        self.broker = BrokerProcess(device.directory, None)
        self.copy = folder / "copy"
        self.stored: list[Stored] = []
        self._device = device

    def fill(self, config: str, *, stop: bool, in_doubt: bool = False) -> None:
        """Store the messages, then stop the broker in good order, so that a checkpoint holds everything, or kill it."""
        self.broker.config_path.write_text(config)
        self.broker.start()
        with WireClient(self.broker.port) as client:
            if in_doubt:
                client.put("orders", 3, bytes(10_000))  # not in the page of the segment's header
                client.verb(TransactionVerb.BEGIN, IN_DOUBT)
                client.put("orders", 1, BODIES[0], IN_DOUBT)
                client.verb(TransactionVerb.PREPARE, IN_DOUBT)
            for body in BODIES:
                client.put("orders", 0, body)
        if stop:
            assert self.broker.stop() == 0
        self.broker.kill()
        shutil.copytree(self.broker.data, self.copy, ignore=shutil.ignore_patterns("lost+found"))
        self.stored = list(self._find_stored())
        assert len(self.stored) == MESSAGES
        assert self.stored[0].lsn + RECORD_BYTES == self.stored[1].lsn

    def _find_stored(self) -> Iterator[Stored]:
        files = sorted(self.broker.data.glob("*.journal"))
        for line in run_metaq("journal", "dump", str(self.copy), "--json").stdout.splitlines():
            record = json.loads(line)
            for place in record["places"]:
                if place["partition"] != 0:
                    continue
                file = max(file for file in files if int(file.stem) <= record["lsn"])
                yield Stored(place["base"], file, record["lsn"] - int(file.stem), record["lsn"])

    def damage(self, file: Path, position: int) -> None:
        """Make the sector there unreadable, and with it its page."""
        self._device.make_unreadable(file, position)

    def damage_message(self, number: int) -> list[Stored]:
        """Make a sector in the middle of it unreadable; returns the records on its page."""
        stored = self.stored[number]
        position = stored.position + RECORD_BYTES // 2
        self.damage(stored.file, position)
        page = position - position % PAGE
        return [each for each in self.stored if each.file == stored.file and each.is_in(page)]

    def check_all_there(self) -> None:
        with WireClient(self.broker.port) as client:
            client.wait_rebuilt("orders", 0)
            assert [message.payload for _, message in client.read_all("orders", 0)] == BODIES


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with failing_device(tmp_path / "device") as device:
        directory = Directory(device, tmp_path)
        try:
            yield directory
        finally:
            directory.broker.kill()


def test_in_a_closed_segment_it_fails_the_reads_of_its_messages_alone(directory: Directory) -> None:
    directory.fill(CONFIG, stop=True)
    hurt = directory.damage_message(DAMAGED)
    stored = directory.stored
    directory.broker.start()
    with WireClient(directory.broker.port) as client:
        for number, one in enumerate(stored):
            answer = client.get("orders", 0, one.offset, FRAME_BYTES)
            if number == DAMAGED or (one in hurt and not isinstance(answer, Value)):
                check_refused(answer, one.file)
            else:
                check_messages(answer, number, one.offset)
        # All around it is in the page cache now. A read of many messages that has it somewhere:
        for number in range(DAMAGED - 45, DAMAGED + 1):
            answer = client.get("orders", 0, stored[number].offset)
            if isinstance(answer, Value):
                check_messages(answer, number, stored[number].offset)
            else:
                check_refused(answer, hurt[0].file)
        client.put("orders", 0, b"one more")
    assert directory.broker.stop() == 0


def check_messages(answer: Response, number: int, offset: int) -> None:
    """Check the stored messages from *number* on, which is at *offset*."""
    assert isinstance(answer, Value), answer
    read = [message.payload for _, _, message in iter_frames(answer.body, offset)]
    assert read
    assert read == BODIES[number : number + len(read)]


def check_refused(answer: Response, file: Path) -> None:
    """An error with a place, and not the one that says that nothing is there."""
    assert isinstance(answer, Result), answer
    assert answer.status not in (200, 404), answer
    assert f"{file.name}" in answer.text, answer
    assert "Input/output error" in answer.text, answer


@pytest.mark.parametrize("number", [pytest.param(-5, id="before others"), pytest.param(-1, id="the last message")])
def test_in_the_tail_it_refuses_the_start_and_is_no_torn_tail(number: int, directory: Directory) -> None:
    directory.fill(NO_CHECKPOINTS, stop=False)
    hurt = directory.damage_message(number)
    assert not directory.broker.maybe_start()
    said = directory.broker.log.splitlines()[-1]
    assert hurt[0].file.name in said, said
    assert "Input/output error" in said, said
    # Whether more was stored behind the last message of the copy, in the same page, nobody knows.
    check_commands(directory, hurt[0].file, hurt[-1].lsn, *["--drop"] * (number == -1))


@pytest.mark.parametrize("part", ["message", "header"])
def test_in_a_closed_segment_it_is_found_and_mended_from_a_copy(part: str, directory: Directory) -> None:
    directory.fill(CONFIG, stop=True)
    if part == "message":
        hurt = directory.damage_message(DAMAGED)
        check_commands(directory, hurt[0].file, hurt[-1].lsn)
    else:
        first = next(stored for stored in directory.stored if int(stored.file.stem))
        directory.damage(first.file, 0)
        check_commands(directory, first.file, None)


def test_what_no_copy_has_can_be_dropped(directory: Directory) -> None:
    directory.fill(CONFIG, stop=True)
    hurt = directory.damage_message(DAMAGED)
    data = str(directory.broker.data)
    dropped = run_metaq("journal", "repair", data, "--drop", "--yes")
    assert dropped.returncode == 0, dropped
    assert run_metaq("journal", "check", data).returncode == 0
    directory.broker.start()
    first, last = (directory.stored.index(hurt[number]) for number in (0, -1))
    with WireClient(directory.broker.port) as client:
        client.wait_rebuilt("orders", 0)
        check_messages(client.get("orders", 0, 0), 0, 0)
        refused = client.get("orders", 0, directory.stored[DAMAGED].offset)
        assert isinstance(refused, Result), refused
        assert (refused.status, refused.message) == (301, b"%d" % directory.stored[last + 1].offset)
        before = client.get("orders", 0, directory.stored[first - 1].offset, FRAME_BYTES)
        check_messages(before, first - 1, directory.stored[first - 1].offset)
    assert directory.broker.stop() == 0


def test_in_a_branch_in_doubt_it_does_not_stop_the_broker_that_relocates_it(directory: Directory) -> None:
    """A live branch that falls four segments behind is copied forward: a worker thread reads it."""
    directory.fill(CONFIG, stop=True, in_doubt=True)
    (file,) = directory.broker.data.glob(f"{0:020d}.journal")
    directory.damage(file, file.read_bytes().index(BODIES[0]) + 1000)
    directory.broker.start()
    deadline = time.monotonic() + 30
    while file.name not in directory.broker.log:
        assert time.monotonic() < deadline, directory.broker.log
        with WireClient(directory.broker.port) as client:
            client.put("orders", 2, bytes(20_000))
        time.sleep(0.01)
    with WireClient(directory.broker.port) as client:
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, IN_DOUBT)
        check_refused(client.get("orders", 1, 0), file)
    directory.check_all_there()
    assert directory.broker.stop() == 0


def check_commands(directory: Directory, file: Path, lsn: int | None, *consent: str) -> None:
    """Each command names the place of an unreadable record at *lsn*, or of a segment header, and none dies of it.

    *consent*: what a repair from the copy needs besides.
    """
    data = str(directory.broker.data)
    checked = run_metaq("journal", "check", data)
    assert checked.returncode == 1, checked
    assert file.name in checked.stdout, checked
    told = json.loads(run_metaq("journal", "check", data, "--json").stdout)
    assert not told["sound"], told
    assert "torn" not in told["verdict"], told
    if lsn is not None:
        ranges = [(each["start"], each["end"]) for each in told["affected"]["lsns"]]
        assert any(start <= lsn and (end is None or lsn < end) for start, end in ranges), told
    dumped = run_metaq("journal", "dump", data)
    assert dumped.returncode == 1, dumped
    assert file.name in dumped.stderr, dumped
    planned = run_metaq("journal", "repair", data, "--from", str(directory.copy))
    assert planned.returncode == 1, planned
    if consent:
        refused = run_metaq("journal", "repair", data, "--from", str(directory.copy), "--yes")
        assert refused.returncode == 1, refused
    repaired = run_metaq("journal", "repair", data, "--from", str(directory.copy), *consent, "--yes")
    assert repaired.returncode == 0, repaired
    assert run_metaq("journal", "check", data).returncode == 0
    directory.broker.start()
    if consent:  # the partition goes on beyond what may have stood behind
        with WireClient(directory.broker.port) as client:
            client.wait_rebuilt("orders", 0)
            for number, one in enumerate(directory.stored):
                check_messages(client.get("orders", 0, one.offset, FRAME_BYTES), number, one.offset)
    else:
        directory.check_all_there()
    assert directory.broker.stop() == 0


def test_in_the_newest_checkpoint_it_takes_the_one_before(directory: Directory) -> None:
    directory.fill(CONFIG, stop=True)
    newest = max(directory.broker.data.glob("checkpoint.*"), key=lambda file: int(file.suffix[1:]))
    directory.damage(newest, 0)
    checked = run_metaq("journal", "check", str(directory.broker.data))
    assert checked.returncode == 1, checked
    assert newest.name in checked.stdout, checked
    assert directory.broker.maybe_start(), directory.broker.log
    assert newest.name in directory.broker.log
    directory.check_all_there()
    assert directory.broker.stop() == 0


def test_in_an_index_file_it_is_rebuilt_from_the_journal(directory: Directory) -> None:
    directory.fill(CONFIG, stop=True)
    directory.damage(directory.broker.data / "index" / "orders-0.index", 5000)
    assert directory.broker.maybe_start(), directory.broker.log
    directory.check_all_there()
    with WireClient(directory.broker.port) as client:
        client.put("orders", 0, b"one more")
    assert directory.broker.stop() == 0
    assert run_metaq("journal", "check", str(directory.broker.data)).returncode == 0
