"""Message ids rise: through bursts, through a clock that is set back, and through restarts."""

from hypothesis import given
from hypothesis import strategies as st

from journal.state.wall_clock import TIME_MS_END
from meta_broker.handlers.message_ids import MessageIds
from meta_client.protocol.id_layout import BIRTH_MS

NOW = 1_700_000_000_000


class Clock:
    """Milliseconds that a test sets."""

    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


def test_an_id_holds_time_broker_and_sequence() -> None:
    ids = MessageIds(1023, Clock())
    first, second = ids.next(), ids.next()
    assert first == (NOW - BIRTH_MS) << 22 | 1023 << 12
    assert second == first + 1
    assert 0 < second < 2**63


def test_ids_end_when_records_do() -> None:
    clock = Clock()
    clock.ms = TIME_MS_END - 1
    assert MessageIds(1023, clock).next() < 2**63 <= MessageIds(1023, lambda: TIME_MS_END).next()


def test_a_full_millisecond_borrows_from_the_next() -> None:
    clock = Clock()
    ids = MessageIds(0, clock)
    handed = [ids.next() for _ in range(3 * 4096)]
    assert len(set(handed)) == len(handed)
    assert handed == sorted(handed)
    assert [(i >> 22) + BIRTH_MS - NOW for i in (handed[0], handed[4095], handed[4096], handed[-1])] == [0, 0, 1, 2]
    assert ids.now_ms() == NOW + 2
    clock.ms += 1  # into the borrowed time: what is left of it is used, nothing twice
    assert ids.next() == handed[-1] + (1 << 22) - 4095


def test_ids_begin_beyond_the_journal() -> None:
    ids = MessageIds(0, Clock())
    ids.begin_after(NOW + 60_000)
    assert (ids.next() >> 22) + BIRTH_MS == NOW + 60_001
    ids.begin_after(NOW)  # behind already
    assert (ids.next() >> 22) + BIRTH_MS == NOW + 60_001


def test_a_clock_before_the_birthday_gives_no_negative_id() -> None:
    clock = Clock()
    clock.ms = 0
    assert MessageIds(5, clock).next() == 5 << 12


Step = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 9_000)),
    st.tuples(st.just("clock"), st.integers(-5_000, 5_000)),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(st.lists(Step, max_size=12))
def test_ids_rise_whatever_the_clock_does(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    ids = MessageIds(1, clock)
    last, journal_ms = -1, 0
    for step, number in steps:
        if step == "clock":
            clock.ms += number
        elif step == "restart":
            ids = MessageIds(1, clock)
            ids.begin_after(journal_ms)
        else:
            for _ in range(number):
                before, last = last, ids.next()
                assert last > before
            journal_ms = max(journal_ms, ids.now_ms())  # what the record of the last one carries
