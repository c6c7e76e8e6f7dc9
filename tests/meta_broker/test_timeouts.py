"""When branches expire (spec 2.6)."""

from journal.fold import Branch
from journal.frame import Lsn
from journal.states import BranchState
from journal.transaction_store import Transaction
from meta_broker.transactions.timeouts import Timeouts
from tests.fixtures.journals import xa


def transaction(name: str, timeout_ms: int) -> Transaction:
    return Transaction(xa(name), 0, timeout_ms)


def test_what_is_due_expires_soonest_first_and_once() -> None:
    timeouts = Timeouts()
    late, soon, same = transaction("late", 3_000), transaction("soon", 1_000), transaction("same", 1_000)
    for each in (late, soon, same):
        timeouts.add(each, now_s=100.0)
    assert timeouts.expired(100.999) == []
    assert timeouts.expired(101.0) == [soon, same]
    assert timeouts.expired(102.999) == []
    assert timeouts.expired(500.0) == [late]
    assert timeouts.expired(500.0) == []
    assert len(timeouts) == 0


def test_only_active_branches_expire() -> None:
    timeouts = Timeouts()
    begun, in_use, prepared, over = (transaction(name, 1) for name in ("begun", "in-use", "prepared", "over"))
    in_use.branch = Branch(in_use.key, Lsn(1), 0)
    prepared.branch = Branch(prepared.key, Lsn(2), 0, BranchState.PREPARED)
    over.is_over = True
    for each in (begun, in_use, prepared, over):
        timeouts.add(each, now_s=0.0)
    assert timeouts.expired(1.0) == [begun, in_use]


def test_finished_branches_do_not_pile_up() -> None:
    """Ten thousand a second with a timeout of a minute would be six hundred thousand."""
    timeouts = Timeouts()
    alive = [transaction(f"alive-{n}", 60_000) for n in range(2_000)]
    for each in alive:
        timeouts.add(each, now_s=0.0)
    for number in range(50_000):
        done = transaction(f"done-{number}", 60_000)
        timeouts.add(done, now_s=0.0)
        done.is_over = True
        assert len(timeouts) <= 4 * len(alive)
    assert timeouts.expired(60.0) == alive
