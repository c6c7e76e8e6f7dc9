"""Threads woken in turn: when any of them leaves, at any time, those queued after it are still woken."""

import math
import random
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from meta_client.net.wakeups import Waiter, wait_done, wake
from tests.fixtures.zookeeper_tree import wait_until

WAIT_S = 60.0


@dataclass(eq=False)
class Thing:
    """Object that threads wait for."""

    is_done: bool = False
    waiters: list[Waiter] = field(default_factory=list)


class Turns(RuleBasedStateMachine):
    """The steps of those who sleep and those who bring, in any order. Nobody may be left asleep at the end, unless
    it found on lying down that there was nothing to sleep for, and gets up by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.things: list[Thing] = []
        self.unannounced: list[Thing] = []  # done, but wake was not told
        self.asleep: dict[Waiter, None] = {}
        self.awake: set[Waiter] = set()  # of those: they have seen that it is there
        self.lines = 0

    @rule()
    def begin(self) -> None:
        self.things.append(Thing())

    @precondition(lambda self: self.things)
    @rule(data=st.data())
    def lie_down(self, data: st.DataObject) -> None:
        thing = data.draw(st.sampled_from(self.things))
        waiter = Waiter()
        thing.waiters.append(waiter)
        self.asleep[waiter] = None
        if thing.is_done:
            self.awake.add(waiter)

    @precondition(lambda self: self.asleep)
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        """Called, out of time, having seen that it is there, or ended by an exception: it is all the same."""
        self.get_up(data.draw(st.sampled_from(list(self.asleep))))

    @rule(data=st.data())
    def bring(self, data: st.DataObject) -> None:
        for thing in self.things:
            if not thing.is_done and data.draw(st.booleans()):
                thing.is_done = True
                self.unannounced.append(thing)

    @precondition(lambda self: self.unannounced)
    @rule()
    def announce(self) -> None:
        wake(self.unannounced)
        self.unannounced = []
        self.lines += 1

    def get_up(self, waiter: Waiter) -> None:
        waiter.stop_waiting()
        del self.asleep[waiter]
        self.awake.discard(waiter)

    def teardown(self) -> None:
        self.unannounced += [thing for thing in self.things if not thing.is_done]
        self.announce()
        while called := [waiter for waiter in self.asleep if waiter.wait(0)]:
            assert len(called) <= self.lines, "they come in turn"
            for waiter in called:
                self.get_up(waiter)
        assert self.asleep.keys() == self.awake


TestTurns = Turns.TestCase


def start(things: list[Thing], timeout_s: float = WAIT_S * 2) -> list[threading.Thread]:
    """A thread asleep for each of *things*, in that order."""
    threads = []
    for thing in things:
        deadline = time.monotonic() + timeout_s
        threads.append(threading.Thread(target=wait_done, args=(thing, deadline)))
        threads[-1].start()
    return threads


def join(threads: list[threading.Thread], told: str = "") -> None:
    deadline = time.monotonic() + WAIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"somebody sleeps on {told}"


def test_a_called_thread_calls_the_next() -> None:
    """Threads are woken one at a time: a called one that has not run yet keeps the others asleep."""
    things = [Thing(is_done=True) for _ in range(3)]
    waiters = [Waiter() for _ in things]
    for thing, waiter in zip(things, waiters, strict=True):
        thing.waiters.append(waiter)
    wake(things)
    assert [waiter.wait(0) for waiter in waiters] == [True, False, False]
    waiters[1].stop_waiting()  # out of time: passed over
    waiters[0].stop_waiting()
    assert [waiter.wait(0) for waiter in waiters] == [False, False, True]


def test_nobody_waits_for_what_is_there() -> None:
    thing = Thing(is_done=True)
    wait_done(thing, math.inf)
    assert not thing.waiters


def test_a_deadline_ends_the_wait() -> None:
    started = time.monotonic()
    wait_done(Thing(), started + 0.05)
    assert time.monotonic() >= started + 0.05


def test_threads_that_leave_at_any_moment_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them give up at about the time at which all is brought, by two threads at once."""
    monkeypatch.setattr("meta_client.net.wakeups.LOOK_S", WAIT_S * 2)  # nobody finds out by looking
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(100):
        things = [Thing() for _ in range(6)]
        threads = start(chance.choices(things, k=4))
        hasty = [chance.choice(things) for _ in range(4)]
        threads += [thread for thing in hasty for thread in start([thing], chance.uniform(0, 0.004))]
        bringing = [threading.Thread(target=bring_all, args=(half,)) for half in (things[::2], things[1::2])]
        time.sleep(chance.uniform(0, 0.003))  # hopes for nothing: any moment will do
        for thread in bringing:
            thread.start()
        join(threads + bringing, f"seed {seed}")


def bring_all(things: list[Thing]) -> None:
    for thing in things:
        thing.is_done = True
    wake(things)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("when", ["before it is called", "as it is called"])
def test_a_waiter_that_dies_keeps_no_other_waiting(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta_client.net.wakeups.LOOK_S", WAIT_S * 2)
    mine, others = Thing(), [Thing() for _ in range(3)]
    threads = start(others)
    wait_until(lambda: all(thing.waiters for thing in others), WAIT_S)

    def interrupt(number: int, frame: object) -> None:
        if when == "as it is called":
            bring_all([mine, *others])
        raise Interrupted

    def kill(caller: int) -> None:
        wait_until(lambda: bool(mine.waiters), WAIT_S)
        signal.pthread_kill(caller, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, interrupt)
    killing = threading.Thread(target=kill, args=(threading.get_ident(),))
    try:
        killing.start()
        with pytest.raises(Interrupted):
            wait_done(mine, time.monotonic() + WAIT_S)
        killing.join()
    finally:
        signal.signal(signal.SIGUSR1, former)
    if when == "before it is called":
        bring_all([mine, *others])
    join(threads)


def test_a_call_that_never_comes_is_not_waited_for() -> None:
    """The calling thread was interrupted between the two steps."""
    thing = Thing()
    (thread,) = start([thing])
    wait_until(lambda: bool(thing.waiters), WAIT_S)
    thing.is_done = True
    join([thread])  # long before its deadline
