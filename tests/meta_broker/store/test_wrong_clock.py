"""A broker process whose wall clock is set under it: what retention by age deletes, and what records carry."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta_client.protocol.answers import parse_offset_range
from meta_client.protocol.requests import Offsets, TakeCheckpoint
from meta_client.protocol.status import Status
from tests.fixtures.broker import ExecutedBroker
from tests.fixtures.wire import WireClient

DAY_MS = 86_400_000
CONFIG = """
[broker]
checkpoint_seconds = 3600.0
segment_bytes = 262144
message_bytes_max = 65536

[topics.orders]
partitions = 1

[retention]
hours = 24
when = 0.1
"""


class SetClock(ExecutedBroker):
    """A broker whose wall clock differs from the machine's by what the file `shift` says, in milliseconds."""

    confirm_ms = 600_000

    @property
    def shift_path(self) -> Path:
        return self.data.parent / "shift"

    def shift(self, by_ms: int) -> None:
        fresh = self.shift_path.with_suffix(".tmp")
        fresh.write_text(str(by_ms))
        fresh.rename(self.shift_path)

    def command(self) -> list[str]:
        code = f"""
import time
from pathlib import Path
import meta_broker.app.master, meta_broker.store.clock
shift = Path({str(self.shift_path)!r})
shifted = lambda: time.time_ns() + int(shift.read_text()) * 1_000_000
meta_broker.app.master.Clock = lambda: meta_broker.store.clock.Clock(shifted)
meta_broker.store.clock.CONFIRM_MS = {self.confirm_ms}
from meta_client.cli.main import main
main()
"""
        return [sys.executable, "-c", code, *self.words()]

    def wait_log(self, text: str, before: int) -> None:
        wait_until(lambda: text in self.log_from(before))

    @property
    def log_end(self) -> int:
        return len(self.log.encode())

    @property
    def segments(self) -> list[str]:
        return sorted(path.name for path in self.data.glob("*.journal"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def put(broker: SetClock, count: int) -> None:
    with WireClient(broker.port) as client:
        for number in range(count):
            client.put("orders", 0, b"%d." % number + bytes(20_000))


def retention_looked(broker: SetClock) -> None:
    """Return once it has had every occasion to choose and to delete: a checkpoint for each, and once more."""
    with WireClient(broker.port) as client:
        for _ in range(4):
            client.put("orders", 0, b"more")
            assert client.result(TakeCheckpoint(client.opaque())).status == Status.SUCCESS
            time.sleep(0.15)  # longer than `when`: the next one looks again


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SetClock]:
    broker = SetClock(tmp_path / "broker", None, config=CONFIG)
    broker.shift(0)
    try:
        yield broker
    finally:
        broker.kill()
    broker.audit()


def test_a_clock_that_is_wrong_for_one_put_deletes_nothing(broker: SetClock) -> None:
    broker.start()
    put(broker, 60)
    before = broker.segments
    assert len(before) > 3
    for by_ms in (2 * DAY_MS, -2 * DAY_MS):
        position = broker.log_end
        broker.shift(by_ms)
        put(broker, 1)
        broker.shift(0)
        put(broker, 1)
        retention_looked(broker)
        assert broker.segments[: len(before)] == before
        assert f"wall clock stepped by_s={by_ms // 1000}: not believed" in broker.log_from(position)
        assert "wall clock is back" in broker.log_from(position)
    with WireClient(broker.port) as client:
        tomorrow = int(time.time() * 1000) + DAY_MS
        found = parse_offset_range(client.result(Offsets("orders", 0, tomorrow, client.opaque())).message)
    assert found.at == found.end, "a record carries the wrong time"


def test_a_start_with_a_wrong_clock_deletes_nothing_and_with_a_right_one_what_is_old(broker: SetClock) -> None:
    broker.start()
    put(broker, 60)
    before = broker.segments
    assert broker.stop() == 0
    broker.shift(2 * DAY_MS)
    position = broker.log_end
    broker.start()
    broker.wait_log("newest record is old by_s=1728", position)
    retention_looked(broker)
    broker.shift(0)
    broker.wait_log("wall clock stepped by_s=-172800: not believed", position)
    retention_looked(broker)
    assert broker.segments[: len(before)] == before
    assert broker.stop() == 0

    broker.shift(5 * DAY_MS)  # so long it was down, and now the clock holds
    broker.confirm_ms = 300
    position = broker.log_end
    broker.start()
    broker.wait_log("segments dropped", position)
    wait_until(lambda: before[0] not in broker.segments)


def test_a_step_that_holds_is_believed_and_ages_nothing(broker: SetClock) -> None:
    broker.confirm_ms = 300
    broker.start()
    put(broker, 60)
    before = broker.segments
    position = broker.log_end
    broker.shift(2 * DAY_MS)
    broker.wait_log("wall clock step believed by_s=172800", position)
    with WireClient(broker.port) as client:
        late = client.put("orders", 0, b"after the step")
    retention_looked(broker)
    assert broker.segments[: len(before)] == before
    with WireClient(broker.port) as client:
        tomorrow = int(time.time() * 1000) + DAY_MS
        found = parse_offset_range(client.result(Offsets("orders", 0, tomorrow, client.opaque())).message)
    assert found.at == late.offset
    assert broker.stop() == 0
    broker.start()  # the clock stays where it is
    retention_looked(broker)
    assert broker.segments[: len(before)] == before, "a restart takes the step for age"


def test_a_start_beyond_the_end_of_message_ids_is_refused_and_changes_nothing(broker: SetClock) -> None:
    """A record of that time would leave no ids: not one message could ever be put again."""
    broker.start()
    put(broker, 1)
    assert broker.stop() == 0
    before = {path.name: path.read_bytes() for path in broker.data.iterdir() if path.is_file()}
    broker.shift(80 * 365 * DAY_MS)
    assert not broker.maybe_start()
    assert "message ids end in 2081: set it; nothing was written" in broker.log
    assert {path.name: path.read_bytes() for path in broker.data.iterdir() if path.is_file()} == before
    broker.shift(0)
    broker.start()
    put(broker, 1)


def test_a_clock_that_leaves_the_message_ids_behind_is_never_believed(broker: SetClock) -> None:
    broker.confirm_ms = 500
    broker.start()
    put(broker, 1)
    broker.shift(80 * 365 * DAY_MS)
    for _ in range(4):
        put(broker, 1)
        time.sleep(0.5)
    assert "not believed" in broker.log
    assert "wall clock step believed" not in broker.log
