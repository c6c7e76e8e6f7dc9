"""Traps and gate: the processes held, and for how long."""

import contextlib
import threading

from hypothesis import given
from hypothesis import strategies as st

from journal.records.xid import Xid
from meta_broker.demo import talk
from meta_broker.demo.traps import Gate, Traps
from meta_client.coordinator import Step

XID = Xid(1, b"shop.x.1-1", b"")


def test_one_transaction_is_held_at_each_step_until_the_release() -> None:
    held: list[Step] = []
    is_held = threading.Semaphore(0)

    def on_trapped(step: Step, xid: Xid) -> None:
        held.append(step)
        is_held.release()

    traps = Traps(on_trapped)
    traps.observe(Step.DECIDED, XID)  # nothing is armed
    traps.arm({Step.DECIDED, Step.BEGUN})
    threads = [threading.Thread(target=traps.observe, args=(step, XID)) for step in (Step.DECIDED, Step.BEGUN)]
    for thread in threads:
        thread.start()
        assert is_held.acquire(timeout=60)
    traps.observe(Step.DECIDED, XID)  # the next one passes
    assert held == [Step.DECIDED, Step.BEGUN]
    assert all(thread.is_alive() for thread in threads)
    traps.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    traps.observe(Step.DECIDED, XID)


def test_a_release_disarms() -> None:
    traps = Traps(lambda step, xid: None)
    traps.arm({Step.DECIDED})
    traps.release()
    traps.observe(Step.DECIDED, XID)


def test_the_gate_lets_so_many_through() -> None:
    gate, passed = Gate(2), threading.Semaphore(0)

    def walk() -> None:
        gate.pass_through()
        passed.release()

    threads = [threading.Thread(target=walk, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert passed.acquire(timeout=60)
    assert passed.acquire(timeout=60)
    assert not passed.acquire(timeout=0.1)
    gate.raise_to(3)
    assert passed.acquire(timeout=60)


@given(line=st.binary(max_size=80))
def test_what_is_said_reads_back_and_nothing_else_does(line: bytes) -> None:
    for order in (talk.Trap(["DECIDED"]), talk.Proceed(3), talk.Release(), talk.Stop()):
        assert talk.decode_order(talk.encode(order)) == order
    recovered = talk.Recovered([talk.RecoveredOne("a", "COMMIT")])
    for event in (recovered, talk.Committed(1, 2), talk.Trapped("DECIDED", "x"), talk.Finished()):
        assert talk.decode_event(talk.encode(event)) == event
    for decode in (talk.decode_order, talk.decode_event):
        with contextlib.suppress(talk.Malformed):
            assert talk.encode(decode(line))
