"""Things that are passed over, and when it is tried again, by a clock that the test moves."""

import pytest

from meta_client.outbox import waits
from meta_client.outbox.waits import Waits

TRY_S = 5.0  # until a broker that does not answer is given up


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waits, "time", clock)
    return clock


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_brokers_that_do_not_answer_leave_half_of_the_time_to_others(clock: Clock, count: int) -> None:
    brokers = Waits[int]("messages wait broker=%s reason=%s")

    def fail(broker_id: int) -> None:
        began = clock.now
        clock.now += TRY_S
        brokers.add(broker_id, TimeoutError(), began)

    for broker_id in range(count):
        fail(broker_id)
    began, tried = clock.now, list[int]()
    while clock.now < began + 1_000:
        if due := set(range(count)).difference(brokers.over(clock.now)):
            tried.append(min(due, key=brokers.due_at))
            fail(tried[-1])
        else:
            clock.now += 0.1  # a pass that moves messages for others
    assert len(tried) * TRY_S <= 510
    assert set(tried) == set(range(count)), "each has its turn"


def test_a_topic_at_a_broker_is_told_of_by_both(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    Waits[tuple[str, int]]("messages wait topic=%s broker=%s reason=%s").add(("t", 7), TimeoutError("no"), clock.now)
    assert "messages wait topic=t broker=7 reason=no" in caplog.text


def test_those_dropped_leave_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    topics = Waits[str]("messages wait topic=%s reason=%s")
    for number in range(100):
        topics.add(f"t{number}", TimeoutError(), clock.now)
    topics.keep({"t1", "t2"})
    assert topics.listed == ("t1", "t2")
    topics.drop({"t1"})
    assert set(topics.listed) == set(topics._told) == {"t2"}
    topics.add("t1", TimeoutError(), clock.now)
    topics.add("t2", TimeoutError(), clock.now)
    assert [caplog.text.count(f"topic={name} ") for name in ("t1", "t2")] == [2, 1]
