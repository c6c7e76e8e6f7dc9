"""The threads that are held for a kill: at which step, and for how long."""

import threading

from journal.records.xid import Xid
from meta_broker.demo.producers import Hold, ProducerEvent, Trapped, Work
from meta_client.coordinator import TwoPhaseStep

XID = Xid(1, b"shop.x.1-1", b"")


def test_one_transaction_is_held_at_each_step_until_the_release() -> None:
    held: list[TwoPhaseStep] = []
    is_held = threading.Semaphore(0)

    def tell(event: ProducerEvent) -> None:
        assert isinstance(event, Trapped)
        held.append(event.step)
        is_held.release()

    hold = Hold(9, tell)
    hold.observe(TwoPhaseStep.DECIDED, XID)  # nothing is armed
    hold.obey(Work(9, frozenset({TwoPhaseStep.DECIDED, TwoPhaseStep.BEGUN})))
    threads = [
        threading.Thread(target=hold.observe, args=(step, XID)) for step in (TwoPhaseStep.DECIDED, TwoPhaseStep.BEGUN)
    ]
    for thread in threads:
        thread.start()
        assert is_held.acquire(timeout=60)
    hold.observe(TwoPhaseStep.DECIDED, XID)  # the next one passes
    assert held == [TwoPhaseStep.DECIDED, TwoPhaseStep.BEGUN]
    assert all(thread.is_alive() for thread in threads)
    hold.obey(Work(9))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    hold.observe(TwoPhaseStep.DECIDED, XID)


def test_a_release_disarms() -> None:
    hold = Hold(9, lambda event: None)
    hold.obey(Work(9, frozenset({TwoPhaseStep.DECIDED})))
    hold.obey(Work(9))
    hold.observe(TwoPhaseStep.DECIDED, XID)


def test_the_gate_lets_so_many_through() -> None:
    hold, passed = Hold(2, lambda event: None), threading.Semaphore(0)

    def walk() -> None:
        hold.begin()
        passed.release()

    threads = [threading.Thread(target=walk, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert passed.acquire(timeout=60)
    assert passed.acquire(timeout=60)
    assert not passed.acquire(timeout=0.1)
    hold.obey(Work(3))
    assert passed.acquire(timeout=60)
