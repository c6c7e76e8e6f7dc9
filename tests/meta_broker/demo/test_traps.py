"""The threads that are held for a kill: at which step, and for how long; and what is said of it."""

import contextlib
import threading

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from journal.records.xid import Xid
from meta_broker.demo import child_lines
from meta_broker.demo.producers import Hold
from meta_client.coordinator import TwoPhaseStep

XID = Xid(1, b"shop.x.1-1", b"")


def test_one_transaction_is_held_at_each_step_until_the_release() -> None:
    held: list[TwoPhaseStep] = []
    is_held = threading.Semaphore(0)

    def on_trapped(step: TwoPhaseStep, xid: Xid) -> None:
        held.append(step)
        is_held.release()

    hold = Hold(9, on_trapped)
    hold.observe(TwoPhaseStep.DECIDED, XID)  # nothing is armed
    hold.obey(child_lines.Work(9, ["DECIDED", "BEGUN"]))
    threads = [
        threading.Thread(target=hold.observe, args=(step, XID)) for step in (TwoPhaseStep.DECIDED, TwoPhaseStep.BEGUN)
    ]
    for thread in threads:
        thread.start()
        assert is_held.acquire(timeout=60)
    hold.observe(TwoPhaseStep.DECIDED, XID)  # the next one passes
    assert held == [TwoPhaseStep.DECIDED, TwoPhaseStep.BEGUN]
    assert all(thread.is_alive() for thread in threads)
    hold.obey(child_lines.Work(9))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    hold.observe(TwoPhaseStep.DECIDED, XID)


def test_a_release_disarms() -> None:
    hold = Hold(9, lambda step, xid: None)
    hold.obey(child_lines.Work(9, ["DECIDED"]))
    hold.obey(child_lines.Work(9))
    hold.observe(TwoPhaseStep.DECIDED, XID)


def test_the_gate_lets_so_many_through() -> None:
    hold, passed = Hold(2, lambda step, xid: None), threading.Semaphore(0)

    def walk() -> None:
        hold.begin()
        passed.release()

    threads = [threading.Thread(target=walk, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert passed.acquire(timeout=60)
    assert passed.acquire(timeout=60)
    assert not passed.acquire(timeout=0.1)
    hold.obey(child_lines.Work(3))
    assert passed.acquire(timeout=60)


@given(line=st.binary(max_size=80))
def test_what_is_said_reads_back_and_nothing_else_does(line: bytes) -> None:
    recovered = child_lines.RecoveryDone({"a": "COMMIT"})
    trapped = child_lines.Trapped("DECIDED", "x")
    for said in (
        child_lines.Work(3, ["DECIDED"]),
        child_lines.Work(3),
        recovered,
        child_lines.RolledBack(),
        trapped,
        child_lines.Finished(),
    ):
        assert child_lines.decode(child_lines.encode(said)) == said
    with contextlib.suppress(msgspec.DecodeError):
        assert child_lines.encode(child_lines.decode(line))
