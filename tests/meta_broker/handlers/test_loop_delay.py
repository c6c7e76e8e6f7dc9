"""The broker knows how long its event loop kept everybody waiting."""

import asyncio
import os
import signal
import time

import pytest

from meta_broker.handlers.loop_delay import IDLE_INTERVAL_S, INTERVAL_S, WINDOW_S, LoopDelay
from tests.fixtures.broker import BrokerProcess, wait_with
from tests.fixtures.virtual_loop import VirtualLoop
from tests.fixtures.wire import WireClient


def test_what_holds_the_loop_is_measured() -> None:
    async def story() -> None:
        delay = LoopDelay()
        loop = asyncio.get_running_loop()
        delay.start(loop)
        await asyncio.sleep(3 * IDLE_INTERVAL_S)
        loop.call_soon(time.sleep, 0.2)
        await asyncio.sleep(3 * IDLE_INTERVAL_S)
        assert delay.max_ms >= 200 - 1000 * IDLE_INTERVAL_S
        assert delay.window_max_ms() == delay.max_ms
        delay.stop()

    asyncio.run(story())


def test_an_idle_loop_is_sampled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, delay, worked_s = VirtualLoop(), LoopDelay(), 0.0
    monkeypatch.setattr(time, "thread_time", lambda: worked_s)
    delay.start(loop)
    intervals_s = []
    for share in (0.0, 0.0, 0.04, 0.06, 1.0, 0.06, 0.04):
        (sample,) = loop.pending_timers()
        intervals_s.append(round(sample.when() - loop.now, 3))
        worked_s += share * intervals_s[-1]
        loop.now = sample.when()
        loop.drain()
    assert intervals_s == [IDLE_INTERVAL_S] * 4 + [INTERVAL_S] * 3
    delay.stop()
    loop.close()


def test_the_window_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    now = 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    delay = LoopDelay()
    delay.start(loop)
    for at, delay_ms in ((1000.0, 70.0), (1000.5, 30.0), (1030.0, 40.0), (1059.0, 20.0)):
        now = at
        delay.record(delay_ms)
    assert (delay.max_ms, delay.window_max_ms()) == (70.0, 70.0)
    now = 1000.0 + WINDOW_S + 2
    assert (delay.max_ms, delay.window_max_ms()) == (70.0, 40.0)
    now += WINDOW_S
    assert (delay.max_ms, delay.window_max_ms()) == (70.0, 0.0)
    delay.stop()
    loop.close()


def test_stats_tell_it(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        os.kill(lone_broker.pid, signal.SIGSTOP)
        began = time.monotonic()
        while time.monotonic() - began < 0.35:
            time.sleep(0.01)
        os.kill(lone_broker.pid, signal.SIGCONT)
        values: dict[str, str] = {}

        def is_told() -> bool:  # once the loop has come to its timers, perhaps after it has answered
            values.update(dict(line.split(" ", 1) for line in client.stats()[1:-1]))
            return float(values["loop_delay_ms_max"]) >= 250

        wait_with(is_told, lone_broker)
        assert values["loop_delay_ms_max_60s"] == values["loop_delay_ms_max"]


def test_what_never_began_ends() -> None:
    LoopDelay().stop()
