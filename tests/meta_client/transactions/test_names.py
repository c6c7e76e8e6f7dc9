"""Names of transactions that a row decides about: bounds, ownership, and what brokers' keys take."""

import pytest

from journal.records.xid import GTRID_BYTES_MAX, XaKey, Xid, parse_key
from meta_client.transactions.names import TableName, table_of, xid_of

OURS = TableName("0123456789abcdef" * 2)
OTHER = TableName("f" * 32)


def test_a_name_fits_and_is_found_again() -> None:
    gtrid = OURS.new_gtrid()
    assert gtrid != OURS.new_gtrid()
    assert len(gtrid) <= GTRID_BYTES_MAX
    for broker_id in (0, 7, 2**31 - 1):
        key = OURS.key(gtrid, broker_id)
        assert parse_key(str(key)) == key
        assert isinstance(key, XaKey)
        assert key.qualifier == f"mq1-{OURS.table_id}"
        assert OURS.gtrid_of(key.xid, broker_id) == gtrid
        assert table_of(key.xid) == OURS.table_id


def test_branches_of_others_are_not_ours() -> None:
    gtrid = OURS.new_gtrid()
    assert OTHER.gtrid_of(xid_of(gtrid, 0), 0) is None
    assert OURS.gtrid_of(xid_of(gtrid, 0), 1) is None  # a branch of another broker, of unknown origin
    for xid in (
        Xid.of(gtrid + "x", "mq0"),
        Xid.of(gtrid[:-1], "mq0"),
        Xid.of(gtrid, "mq"),
        Xid.of(gtrid, "mq00"),
        Xid.of(gtrid, "mq0", format_id=2),
        Xid(1, b"mq1-" + b"\xff" * 40, b"mq0"),
        Xid.of("shop.0123abcd.AAAAAAAAAAAAAAAAAAAAAA", "mq"),
    ):
        assert OURS.gtrid_of(xid, 0) is None
    assert table_of(Xid.of("shop.0123abcd.x", "mq0")) is None


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "G" * 32, "0" * 31 + " ", "A" * 32])
def test_what_is_no_id_of_a_table(text: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        TableName(text)
