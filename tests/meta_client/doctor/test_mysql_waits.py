"""Sessions that hold a row of the decision table, or wait for one, by what the server tells of its locks."""

from meta_client.doctor.evidence import OpenSession
from meta_client.doctor.mysql import _at_table, _Open
from meta_client.transactions.table import TABLE

HOLDER = _Open("7", 70, 5.0, 1, "1 row", "holder")
WAITER = _Open("8", 80, 1.0, 0, "", "waiter")


def test_a_row_leads_to_its_holder_and_those_that_wait() -> None:
    ours, other = f"`shop`.`{TABLE}`", "`shop`.`placed`"
    waits = [
        (8, 7, ours, "'g1'"),
        (8, 7, ours, None),
        (8, 7, other, "'g2'"),
        (9, 6, ours, "'g3'"),
    ]
    holders, waiting = _at_table("shop", [HOLDER, WAITER], waits)
    assert holders == {"g1": OpenSession("holder", 5.0, "has written to", "KILL 70")}
    assert waiting == (OpenSession("waiter", 1.0, "waits for a row of", "KILL 80"),)
