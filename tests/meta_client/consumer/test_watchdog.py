"""What does not move is told once, with a cure, and again only when it had moved in between."""

import pytest

from meta_client.consumer.watchdog import Cure, Finding, Standing, Watchdog, Where
from zk.nodes import Partition

KEY = "orders", Partition(0, 3)
STILL_S, UNOWNED_S = 30.0, 12.0


def standing(rounds: int = 5, where: Where = Where.FETCHING, trouble: str | None = None, epoch: int = 1) -> Standing:
    return Standing(KEY, 700, rounds, epoch, where, trouble)


def look(watchdog: Watchdog, now: float, *standings: Standing) -> list[Finding]:
    return watchdog.look(now, standings, {}, ())


@pytest.mark.parametrize(
    ("still", "text", "cure"),
    [
        (standing(where=Where.DELIVERING), "its listener has not returned: see what it waits for", Cure.NONE),
        (standing(where=Where.UNTAKEN), "nobody takes what was fetched: call fetch(), or iterate", Cure.NONE),
        (standing(where=Where.STARVED), "all runners are inside listeners: configure more runners", Cure.NONE),
        (standing(trouble="status 500: rotten"), "status 500: rotten", Cure.REBALANCE),
        (standing(), "nothing is heard of its fetch: claiming it anew", Cure.RECLAIM),
    ],
)
def test_what_stands_still_is_told_once_with_what_to_do(still: Standing, text: str, cure: Cure) -> None:
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


def test_what_moves_is_claimed_anew_or_held_stands_not_still() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    for now in range(0, 100, 10):
        assert look(watchdog, now, standing(rounds=now)) == []
    for now in range(100, 200, 10):
        assert look(watchdog, now, standing(epoch=now)) == []
    for now in range(200, 300, 10):
        assert look(watchdog, now, standing(where=Where.HELD)) == []
    assert look(watchdog, 310, standing()) == []  # it counts from when it was let go
    assert look(watchdog, 330) == []  # it is not ours any more
    assert watchdog.current() == ()


def test_the_reason_is_that_of_now() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    look(watchdog, 0, standing(trouble="old"))
    (finding,) = look(watchdog, 40, standing(where=Where.DELIVERING, trouble="old"))
    assert "its listener has not returned" in finding.text


def test_a_partition_without_an_owner_is_told_when_nobody_has_had_the_time() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    text = "nobody owns it: look why g_b does not, or restart that one"
    unowned = {KEY: (text, Cure.CALL)}
    assert watchdog.look(0, (), unowned, ()) == []
    assert watchdog.look(5, (), {}, ()) == []  # somebody has it: the next time counts anew
    assert watchdog.look(10, (), unowned, ()) == []
    assert watchdog.look(20, (), unowned, ()) == []
    assert watchdog.look(23, (), unowned, ()) == [Finding(KEY, f"for 13 s {text}", Cure.CALL)]
    assert watchdog.look(33, (), unowned, ()) == []
    assert len(watchdog.current()) == 1


def test_an_owner_node_that_is_gone_is_told_at_once() -> None:
    watchdog = Watchdog(STILL_S, UNOWNED_S)
    (finding,) = watchdog.look(0, [standing()], {}, {KEY})
    assert finding.cure is Cure.RECLAIM
    assert "its owner node is gone" in finding.text
