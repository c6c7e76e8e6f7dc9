"""The coordinator's tables, every combination."""

import itertools

import pytest

from journal.errors import InvalidRecord
from journal.records.xid import GTRID_BYTES_MAX, Xid
from meta_client.coordinator.names import InvalidCoordinatorName, LogName, new_nonce
from meta_client.coordinator.receipts import Receipts
from meta_client.coordinator.steps import NEXT, UNDECIDED_STEPS, TwoPhaseStep, next_step

DECIDED_STEPS = frozenset(TwoPhaseStep) - UNDECIDED_STEPS - {TwoPhaseStep.ROLLED_BACK}


def reachable(start: TwoPhaseStep) -> set[TwoPhaseStep]:
    found, todo = set[TwoPhaseStep](), [start]
    while todo:
        for step in NEXT[todo.pop()] - found:
            found.add(step)
            todo.append(step)
    return found


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(TwoPhaseStep, TwoPhaseStep)))
def test_only_what_the_table_has_may_follow(current: TwoPhaseStep, wanted: TwoPhaseStep) -> None:
    if wanted in NEXT[current]:
        assert next_step(current, wanted) is wanted
    else:
        with pytest.raises(AssertionError, match="must not follow"):
            next_step(current, wanted)


def test_every_step_is_reached_and_every_life_ends() -> None:
    assert reachable(TwoPhaseStep.BEGUN) | {TwoPhaseStep.BEGUN} == set(TwoPhaseStep)
    for step in TwoPhaseStep:
        assert {TwoPhaseStep.FORGOTTEN, TwoPhaseStep.ROLLED_BACK} & (reachable(step) | {step})


def test_nothing_undoes_a_decision() -> None:
    for step in DECIDED_STEPS:
        assert TwoPhaseStep.ROLLED_BACK not in reachable(step)


def test_a_decision_follows_both_prepares() -> None:
    assert [step for step in TwoPhaseStep if TwoPhaseStep.DECIDED in NEXT[step]] == [TwoPhaseStep.PREPARED_DATABASE]
    assert [step for step in TwoPhaseStep if TwoPhaseStep.PREPARED_DATABASE in NEXT[step]] == [
        TwoPhaseStep.PREPARED_BROKER
    ]


def test_a_broker_commits_after_the_database() -> None:
    assert [step for step in TwoPhaseStep if TwoPhaseStep.COMMITTED_BROKER in NEXT[step]] == [
        TwoPhaseStep.COMMITTED_DATABASE
    ]


@pytest.mark.parametrize("name", ["", "-a", "a:b", "a.b", "a b", "é", "x" * 33])
def test_a_name_that_would_break_an_identifier_is_refused(name: str) -> None:
    with pytest.raises(InvalidCoordinatorName):
        LogName(name, "0123abcd")


def test_the_longest_identifier_fits() -> None:
    xid = LogName("x" * 32, "0123abcd").xid(new_nonce())
    assert len(xid.gtrid) == GTRID_BYTES_MAX


def test_a_log_knows_its_own_transactions_only() -> None:
    ours, namesake, other = LogName("shop", "00000000"), LogName("shop", "00000001"), LogName("shop2", "00000000")
    assert [log.owns(ours.xid(new_nonce())) for log in (ours, namesake, other)] == [True, False, False]
    assert [ours.is_namesake(log.xid(new_nonce())) for log in (ours, namesake, other)] == [False, True, False]
    assert not ours.owns(Xid(2, ours.xid(new_nonce()).gtrid, b""))  # another format: somebody else's


def test_the_log_name_reads_back_from_a_segment_header() -> None:
    name = LogName("shop-1_a", "0123abcd")
    assert LogName.of_cluster(name.cluster) == name
    for cluster in ("metaq", "coordinator:shop", "coordinator:shop:xyz", "coordinator::0123abcd", "a:b:c:d"):
        assert LogName.of_cluster(cluster) is None


def test_where_reads_back() -> None:
    where = Receipts("7443/a%20b", "0")
    assert Receipts.parse(str(where)) == where
    for text in ("", "database=1", "broker=1 database=2", "database=1 broker=2 x"):
        with pytest.raises(InvalidRecord, match="recover with the version that wrote it"):
            Receipts.parse(text)
