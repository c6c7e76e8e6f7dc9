"""`metaq txn init` of a database that has its table, in each kind of database."""

import pytest

from meta_client.transactions.databases import Change, init
from meta_client.transactions.table import KEEP_S
from tests.meta_client.transactions.conftest import Deciding


@pytest.mark.parametrize("change", Change)
def test_its_identity(deciding: Deciding, change: Change) -> None:
    identity = init(deciding.url, KEEP_S, change)
    assert (identity == deciding.identity) is (change is not Change.COPIED)
    assert deciding.query("SELECT count(*) FROM metaq_decision_table") == [(1,)]
