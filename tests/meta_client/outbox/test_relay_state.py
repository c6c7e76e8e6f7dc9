"""Text of the relay's row: what was written is read, and nothing else is."""

import pytest

from meta_client.outbox.errors import DamagedRow
from meta_client.outbox.relay_state import BatchBranch, RelayState, branches_of, load
from meta_client.transactions.names import TableName

GTRID = f"{TableName('0' * 32).qualifier}-{'n' * 22}"
RESTS = "", ', "0"', ", true", ", -1", ", 2147483648", ", 0, []", ", 0.5"


def test_what_was_written_is_read() -> None:
    branches = branches_of(GTRID, [1, 0, 1])
    assert branches == [BatchBranch(GTRID, 0), BatchBranch(GTRID, 1)]
    state = RelayState(tuple(branches), (3, 7))
    assert load(state.dump()) == state
    assert state.dump() == f'{{"batches":[["{GTRID}",0],["{GTRID}",1]],"deferred":[3,7]}}'
    assert load("") == load("{}") == RelayState()


@pytest.mark.parametrize(
    "text",
    [
        *("{", "1", "null", '"x"', "[1]", "[" * 100_000, '{"batches":null}', '{"deferred":["7"]}', '{"more":1}'),
        *(f'{{"batches":[["{gtrid}"{rest}]]}}' for gtrid, rest in [("x", ", 0"), *((GTRID, each) for each in RESTS)]),
    ],
)
def test_anything_else_is_damage(text: str) -> None:
    with pytest.raises(DamagedRow, match="column state of metaq_outbox_relay is damaged"):
        load(text)
