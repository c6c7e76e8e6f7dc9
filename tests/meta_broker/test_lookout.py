"""How long a loop looks on before it sleeps, and when it does not."""

from collections.abc import Callable

from meta_broker.lookout import LEFT_OUT_MAX, LOOK_S, Lookout

TURN_S = LOOK_S / 20


class Loop:
    """One whose turns take TURN_S each while there is something to call; then it sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        self.lookout = Lookout(lambda action: self.due.append(action), lambda: self.now)

    def turns_until_sleep(self, comes_after: int | None = None) -> int:
        """An answer leaves; the next request comes after so many turns, if at all. How many turns pass then."""
        self.lookout.answered()
        turns = 0
        while self.due:
            due, self.due = self.due, []
            if turns == comes_after:
                self.lookout.came()
            for action in due:
                action()
            turns += 1
            self.now += TURN_S
        return turns


def test_it_looks_until_a_request_comes_and_no_longer() -> None:
    loop = Loop()
    for _ in range(100):
        assert loop.turns_until_sleep(comes_after=5) == 6


def test_it_gives_up_after_its_time() -> None:
    assert 20 <= Loop().turns_until_sleep() <= 22


def test_where_nothing_comes_it_hardly_looks_and_where_it_does_it_always_does() -> None:
    loop = Loop()
    answers = 20_000
    turns = sum(loop.turns_until_sleep() for _ in range(answers))
    assert turns < answers / LEFT_OUT_MAX * 25 + 200
    for _ in range(LEFT_OUT_MAX + 1):
        loop.turns_until_sleep(comes_after=3)
    assert [loop.turns_until_sleep(comes_after=3) for _ in range(5)] == [4] * 5


def test_answers_while_it_looks_let_it_look_longer() -> None:
    loop = Loop()
    loop.lookout.answered()
    loop.now += LOOK_S - TURN_S
    assert 20 <= loop.turns_until_sleep() <= 22
