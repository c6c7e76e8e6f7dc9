"""The table of a connection's states: every pair of it, and every combination of what stops requests."""

import itertools

import pytest

from meta_broker.net.connection_state import (
    HANDLES,
    NEXT,
    Block,
    ConnectionEvent,
    ConnectionState,
    ConnectionStatus,
    Due,
)


def at(state: ConnectionState) -> ConnectionStatus:
    status = ConnectionStatus(2, 100)
    status.state = state
    return status


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ConnectionState, ConnectionEvent)))
def test_the_table_is_walked_or_the_event_is_a_mistake(state: ConnectionState, event: ConnectionEvent) -> None:
    status = at(state)
    if event in NEXT[state]:
        status.on(event)
        assert status.state is NEXT[state][event]
    else:
        with pytest.raises(AssertionError, match=event.name):
            status.on(event)
        assert status.state is state


def test_no_state_is_left_for_one_that_reads_or_handles_more() -> None:
    order = list(ConnectionState)
    assert all(order.index(after) >= order.index(before) for before in order for after in NEXT[before].values())


@pytest.mark.parametrize("state", list(ConnectionState))
def test_a_request_is_handled_if_nothing_at_all_stops_it(state: ConnectionState) -> None:
    blocks = [frozenset(some) for size in range(len(Block) + 1) for some in itertools.combinations(Block, size)]
    for stopping, in_flight, pending in itertools.product(blocks, (0, 1, 2, 3), (0, 100, 101)):
        status = at(state)
        status.blocks |= stopping
        status.in_flight, status.pending_bytes = in_flight, pending
        assert status.may_handle() == (state in HANDLES and not stopping and in_flight < 2 and pending <= 100)
        assert status.has_drained() == (state is ConnectionState.DRAINING and in_flight == 0)


def test_a_call_is_asked_for_once_until_it_has_come() -> None:
    status = at(ConnectionState.OPEN)
    assert status.ask_for(Due.FLUSH)
    assert status.ask_for(Due.TURN)
    assert not status.ask_for(Due.FLUSH)
    status.due.discard(Due.FLUSH)
    assert status.ask_for(Due.FLUSH)
    assert not status.ask_for(Due.TURN)
