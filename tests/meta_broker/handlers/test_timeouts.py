"""Expiry of branches (spec 2.6)."""

import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.records.xid import XaKey, Xid
from journal.state.live_branch import LiveBranch
from meta_broker.handlers.branch_timeouts import Timeouts
from meta_broker.handlers.transaction import EXPIRED_PER_TURN
from meta_client.logs.limit import BURST
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.requests import Put, Request, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.journals import xa
from tests.fixtures.wire import WireClient

pytestmark = pytest.mark.scenario("U05")

MANY = 10**9


def transaction(name: str, timeout_ms: int) -> LiveBranch:
    return LiveBranch(xa(name), 0, timeout_ms)


def test_what_is_due_expires_soonest_first_and_once() -> None:
    timeouts = Timeouts()
    late, soon, same = transaction("late", 3_000), transaction("soon", 1_000), transaction("same", 1_000)
    for each in (late, soon, same):
        timeouts.add(each, now_s=100.0)
    assert timeouts.expired(100.999, MANY) == []
    assert timeouts.expired(101.0, MANY) == [soon, same]
    assert timeouts.expired(102.999, MANY) == []
    assert timeouts.expired(500.0, MANY) == [late]
    assert timeouts.expired(500.0, MANY) == []
    assert len(timeouts) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),  # seconds
        st.tuples(st.just("discard"), st.integers(0, 40)),
        st.tuples(st.just("wait"), st.integers(0, 15)),  # tenths of a second
        st.tuples(st.just("expire"), st.integers(1, 5)),
    ),
    max_size=60,
)


@given(STEPS)
def test_against_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    timeouts, now = Timeouts(), 0
    model: list[tuple[int, int, LiveBranch]] = []  # due in tenths, in which order added
    begun: list[LiveBranch] = []
    for number, (step, value) in enumerate(steps):
        match step:
            case "add":
                begun.append(transaction(f"order-{number}", value * 1000))
                timeouts.add(begun[-1], now / 10)
                model.append((now + value * 10, number, begun[-1]))
            case "discard" if begun:
                gone = begun[value % len(begun)]
                timeouts.discard(gone)
                model = [entry for entry in model if entry[2] is not gone]
            case "wait":
                now += value
            case "expire":
                # Floats of tenths: half of one more is after whatever is due now and before all else.
                found = timeouts.expired(now / 10 + 0.05, value)
                due = sorted(entry[:2] for entry in model if entry[0] <= now)[:value]
                times = {entry[2]: entry[0] for entry in model}
                assert [times[each] for each in found] == [due_at for due_at, _ in due]
                assert len(set(found)) == len(found)
                model = [entry for entry in model if entry[2] not in found]
    assert len(timeouts) == len(model)


def test_what_ends_in_time_leaves_nothing_behind() -> None:
    """Ten thousand a second with a timeout of a minute would be six hundred thousand."""
    timeouts = Timeouts()
    alive = [transaction(f"alive-{n}", 60_000) for n in range(1_000)]
    for each in alive:
        timeouts.add(each, now_s=0.0)
    for number in range(20_000):
        done = transaction(f"done-{number}", 60_000)
        timeouts.add(done, now_s=0.0)
        timeouts.discard(done)
    assert len(timeouts) == len(alive)
    assert timeouts.expired(60.0, MANY) == alive


def test_a_hundred_thousand_cost_each_what_a_thousand_do() -> None:
    """Processor time for branches to come and go, and to expire a hundred at a time, the best of ten tries each."""
    few, many = _crowd(1_000), _crowd(100_000)
    come_and_go = [min(_come_and_go(crowd) for _ in range(10)) for crowd in (few, many)]
    assert come_and_go[1] < 5 * come_and_go[0]
    expire = [min(_expire(crowd) for _ in range(10)) for crowd in (few, many)]
    assert expire[1] < 5 * expire[0]


def _crowd(count: int) -> Timeouts:
    timeouts, random = Timeouts(), Random(count)
    for number in range(count):
        timeouts.add(transaction(str(number), random.randrange(1, 61) * 1000), now_s=number / count)
    return timeouts


def _come_and_go(timeouts: Timeouts) -> int:
    passing = [transaction("passing", 1000 * (1 + number % 60)) for number in range(1_000)]
    began = time.thread_time_ns()
    for each in passing:
        timeouts.add(each, now_s=1.0)
        timeouts.discard(each)
    return time.thread_time_ns() - began


def _expire(timeouts: Timeouts) -> int:
    began = time.thread_time_ns()
    assert len(timeouts.expired(100.0, 100)) == 100
    return time.thread_time_ns() - began


def test_more_than_a_turn_takes_expire_all_together(lone_broker: BrokerProcess) -> None:
    """Only active branches expire: neither those prepared meanwhile nor those that ended."""
    keys = [XaKey(Xid.of(f"order-{number}", "mq"), "uq") for number in range(3 * EXPIRED_PER_TURN + 2)]
    with WireClient(lone_broker.port) as client:
        ends = {keys[0]: TransactionVerb.PREPARE, keys[1]: TransactionVerb.COMMIT_ONE_PHASE}
        for key in keys:
            requests: list[Request] = [
                TransactionCommand(key, "s", TransactionVerb.BEGIN, 2, None, 1),
                Put("orders", 0, 0, None, key, 2, b"x"),
            ]
            if key in ends:
                requests.append(TransactionCommand(key, "s", ends[key], None, None, 3))
            client.send(*requests)  # in one go, lest it expires in between
        for _ in range(2 * len(keys) + len(ends)):
            answer = client.receive()
            assert isinstance(answer, Result)
            assert answer.is_success, answer.text
        deadline = time.monotonic() + 60
        while (active := client.verb(TransactionVerb.STATUS, keys[-1])) == BranchStatus.ACTIVE.encode():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert active == BranchStatus.ROLLED_BACK.encode()
        found = [client.verb(TransactionVerb.STATUS, key).decode() for key in keys]
        assert found == [BranchStatus.PREPARED, BranchStatus.COMMITTED] + [BranchStatus.ROLLED_BACK] * (len(keys) - 2)
        assert BURST <= lone_broker.log.count("branch timed out") < len(keys)  # of many alike some are left out
