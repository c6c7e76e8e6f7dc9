"""Reports of stuck partitions: once, with a cure, and again only after progress in between."""

import pytest

from meta_client.consumer.watchdog import Cure, FetchState, PartitionFinding, PartitionStatus, Watchdog
from zk.tree.nodes import Partition

KEY = "orders", Partition(0, 3)
STILL_S, UNOWNED_S = 30.0, 12.0


def status(
    rounds: int = 5, state: FetchState = FetchState.FETCHING, last_error: str | None = None, epoch: int = 1
) -> PartitionStatus:
    return PartitionStatus(KEY, 700, rounds, epoch, state, last_error)


def look(watchdog: Watchdog, now: float, *statuses: PartitionStatus) -> list[PartitionFinding]:
    return watchdog.update(now, statuses, {}, ())


@pytest.mark.parametrize(
    ("still", "text", "cure"),
    [
        (status(state=FetchState.DELIVERING), "its listener has not returned: see what it waits for", Cure.NONE),
        (status(state=FetchState.BUFFER_FULL), "nobody takes what was fetched: call fetch(), or iterate", Cure.NONE),
        (status(state=FetchState.STARVED), "all runners are inside listeners: configure more runners", Cure.NONE),
        (status(last_error="status 500: corrupt"), "status 500: corrupt", Cure.REBALANCE),
        (status(), "its fetch gets no answer: claiming it again", Cure.RECLAIM),
    ],
)
def test_what_stands_still_is_told_once_with_what_to_do(still: PartitionStatus, text: str, cure: Cure) -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    assert look(watchdog, 0, still) == []
    assert look(watchdog, 29, still) == []
    (finding,) = look(watchdog, 31, still)
    assert finding.key == KEY
    assert finding.cure is cure
    assert finding.text.startswith("stands at offset 700 for 31 s: ")
    assert finding.text.endswith(text)
    assert look(watchdog, 60, still) == []
    assert [found.key for found in watchdog.current()] == [KEY]
    assert look(watchdog, 61, still._replace(rounds=6)) == []  # it moves
    assert watchdog.current() == ()
    assert len(look(watchdog, 92, still._replace(rounds=6))) == 1  # it stands again


def test_what_moves_is_claimed_again_or_paused_is_not_stuck() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    for now in range(0, 100, 10):
        assert look(watchdog, now, status(rounds=now)) == []
    for now in range(100, 200, 10):
        assert look(watchdog, now, status(epoch=now)) == []
    for now in range(200, 300, 10):
        assert look(watchdog, now, status(state=FetchState.PAUSED)) == []
    assert look(watchdog, 310, status()) == []  # it counts from when it was let go
    assert look(watchdog, 330) == []  # it is not ours any more
    assert watchdog.current() == ()


def test_the_reason_is_that_of_now() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    look(watchdog, 0, status(last_error="old"))
    (finding,) = look(watchdog, 40, status(state=FetchState.DELIVERING, last_error="old"))
    assert "its listener has not returned" in finding.text


def test_a_partition_without_an_owner_is_told_when_nobody_has_had_the_time() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    text = "nobody owns it: look why g_b does not, or restart that one"
    unowned = {KEY: (text, Cure.CALL)}
    assert watchdog.update(0, (), unowned, ()) == []
    assert watchdog.update(5, (), {}, ()) == []  # it has an owner: the time starts again
    assert watchdog.update(10, (), unowned, ()) == []
    assert watchdog.update(20, (), unowned, ()) == []
    assert watchdog.update(23, (), unowned, ()) == [PartitionFinding(KEY, f"for 13 s {text}", Cure.CALL)]
    assert watchdog.update(33, (), unowned, ()) == []
    assert len(watchdog.current()) == 1


def test_an_owner_node_that_is_gone_is_told_at_once() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    (finding,) = watchdog.update(0, [status()], {}, {KEY})
    assert finding.cure is Cure.RECLAIM
    assert "its owner node is gone" in finding.text
