"""Duration of a loop's busy poll, and the cases in which it sleeps at once."""

from collections.abc import Callable

from meta_broker.net.busy_poll import POLL_S, SKIPPED_MAX, BusyPoll

TURN_S = POLL_S / 20


class Loop:
    """Loop whose turns take TURN_S each while there is something to call; then it sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        self.busy_poll = BusyPoll(lambda action: self.due.append(action), lambda: self.now)

    def turns_until_sleep(self, comes_after: int | None = None) -> int:
        """An answer leaves; the next request comes after so many turns, if at all. How many turns pass then."""
        self.busy_poll.on_reply()
        turns = 0
        while self.due:
            due, self.due = self.due, []
            if turns == comes_after:
                self.busy_poll.on_request()
            for action in due:
                action()
            turns += 1
            self.now += TURN_S
        return turns


def test_polls_until_a_request_arrives_and_no_longer() -> None:
    loop = Loop()
    for _ in range(100):
        assert loop.turns_until_sleep(comes_after=5) == 6


def test_gives_up_after_its_time() -> None:
    assert 20 <= Loop().turns_until_sleep() <= 22


def test_hardly_polls_where_nothing_arrives_and_always_polls_where_requests_do() -> None:
    loop = Loop()
    answers = 20_000
    turns = sum(loop.turns_until_sleep() for _ in range(answers))
    assert turns < answers / SKIPPED_MAX * 25 + 200
    for _ in range(SKIPPED_MAX + 1):
        loop.turns_until_sleep(comes_after=3)
    assert [loop.turns_until_sleep(comes_after=3) for _ in range(5)] == [4] * 5


def test_replies_while_polling_extend_the_poll() -> None:
    loop = Loop()
    loop.busy_poll.on_reply()
    loop.now += POLL_S - TURN_S
    assert 20 <= loop.turns_until_sleep() <= 22
