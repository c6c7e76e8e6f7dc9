"""The log writer's table: every pair, and every order of what owner, thread and others can do."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from journal.records.state_table import walk
from journal.wal.writer_state import CLOSED, LOOP_WRITES, NEXT, WAKES_THREAD, E, S


class Model(NamedTuple):
    """Steps of the threads, each under the lock. The steps are those of LogWriter."""

    has_loop: bool  # what is appended waits for the end of the loop's iteration
    state: S = S.IDLE
    is_queued: bool = False
    must_sync: bool = False
    is_woken: bool = False
    thread: str = "awake"  # asleep, awake, writing, ended
    loop: str = ""  # writing
    must_end_turn: bool = False

    def enter(self, event: E) -> "Model":
        after = walk(NEXT, self.state, event)
        wakes = after is not self.state and after in WAKES_THREAD
        return self._replace(state=after, is_woken=self.is_woken or wakes)

    def steps(self) -> Iterator["Model"]:
        yield from self.others()
        yield from self.owner()
        yield from self.writer()

    def others(self) -> Iterator["Model"]:
        yield self.enter(E.CLOSE)
        yield self._replace(must_sync=True).enter(E.CALL)
        if not self.has_loop:
            yield self.enter(E.FAIL)  # the fsync beside the writes
        if self.state not in CLOSED:
            appended = self._replace(is_queued=True)
            if self.has_loop:
                yield appended._replace(must_end_turn=self.must_end_turn or not self.is_queued)
            else:
                yield appended if self.is_queued else appended.enter(E.CALL)

    def owner(self) -> Iterator["Model"]:
        if self.loop:
            done = self._replace(loop="")
            yield done.enter(E.FAIL).enter(E.END_INLINE)
            yield (done.enter(E.CALL) if self.is_queued else done).enter(E.END_INLINE)
        elif self.must_end_turn:
            ended = self._replace(must_end_turn=False)
            yield ended.enter(E.CALL)
            if self.state is S.IDLE and self.is_queued:
                yield ended._replace(is_queued=False, loop="writing").enter(E.BEGIN_INLINE)

    def writer(self) -> Iterator["Model"]:
        match self.thread:
            case "asleep" if self.is_woken:
                yield self._replace(thread="awake", is_woken=False)
            case "awake" if self.state is S.FAILED:
                yield self._replace(thread="ended")
            case "awake":
                has_work = self.is_queued or self.must_sync or self.state is S.CLOSING
                if has_work and self.state not in LOOP_WRITES:
                    rest = self._replace(thread="writing", is_queued=False, must_sync=False)
                    yield rest.enter(E.TAKE_LAST if self.state is S.CLOSING else E.TAKE)
                    if self.is_queued:  # more than a batch
                        yield rest._replace(is_queued=True, must_sync=self.must_sync).enter(E.TAKE)
                else:
                    yield self._replace(thread="asleep").enter(E.REST)
            case "writing":
                yield self._replace(thread="ended" if self.state is S.LAST else "awake")
                yield self._replace(thread="ended").enter(E.FAIL)


def reachable(start: Model) -> set[Model]:
    found, new = {start}, {start}
    while new:
        new = {after for model in new for after in model.steps()} - found
        found |= new
    return found


def test_in_every_order_one_thread_writes_and_what_is_queued_gets_written() -> None:
    states = set()
    for has_loop in (False, True):
        for model in reachable(Model(has_loop)):
            states.add(model.state)
            assert not (model.loop and model.thread == "writing"), model
            assert bool(model.loop) <= (model.state in LOOP_WRITES | {S.FAILED}), model
            if model.thread == "ended":
                assert model.state in (S.LAST, S.FAILED), model
                assert model.state is S.FAILED or not model.is_queued, model
            if model.thread == "asleep" and not model.is_woken and not model.loop:
                assert not model.must_sync, f"nobody fsyncs what was asked for: {model}"
                assert not model.is_queued or model.must_end_turn, f"nobody writes what is queued: {model}"
                assert model.state is S.IDLE, f"nobody ends the thread: {model}"
    assert states == set(S), "every state is reached"


def test_a_pair_that_the_table_lacks_cannot_happen() -> None:
    """An owner writes only when nobody does, and nothing follows the last batch, or a failure."""
    lacking = {pair for pair in product(S, E) if pair[1] not in NEXT[pair[0]]}
    assert {state for state, event in lacking if event is E.BEGIN_INLINE} == set(S) - {S.IDLE}
    assert {state for state, event in lacking if event is E.TAKE} == {*LOOP_WRITES, S.LAST, S.FAILED}
    assert {state for state, event in lacking if event is E.TAKE_LAST} == set(S) - {S.CLOSING}
    assert not {event for _, event in lacking} & {E.CALL, E.CLOSE, E.FAIL}, "other threads' may come at any time"
    for state in CLOSED:
        assert set(NEXT[state].values()) <= CLOSED, "nothing opens a closed journal"
