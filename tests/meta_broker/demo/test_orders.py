"""Reading orders: everything is checked before anything starts, and a broken row is told exactly."""

import contextlib
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.demo.generator import rows, write_orders
from meta_broker.demo.orders import (
    COLUMNS,
    BrokenOrders,
    InvoiceMessage,
    decode_invoice,
    decode_line,
    encode,
    invoice_message,
    line_messages,
    read_invoices,
)

HEADER = ",".join(COLUMNS)
GOOD = "536365,85123A,WHITE HOLDER,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_invoices_are_rows_of_one_number(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        HEADER,
        GOOD,
        '536365,22752,"SET 7 ""BABUSHKA"", BOXES",2,2010-12-01 08:27:00,7.65,17850.0,United Kingdom',
        "C536379,D,Discount,-1,2010-12-01 09:41:00,27.5,,EIRE",
        "536380,22961,,24,2010-12-01 09:41:00,0.0,,EIRE",
    )
    first, cancelled, unknown = read_invoices([path])
    assert (first.number, first.customer, first.country, len(first.lines)) == ("536365", "17850", "United Kingdom", 2)
    assert first.lines[1].description == 'SET 7 "BABUSHKA", BOXES'
    assert first.total == Decimal("30.60")
    assert (cancelled.number, cancelled.total) == ("C536379", Decimal("-27.5"))
    assert (unknown.customer, unknown.lines[0].description, unknown.total) == (None, "", Decimal(0))


def test_several_files_are_one_order_book(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv", HEADER, GOOD), write(tmp_path / "b.csv", HEADER, GOOD.replace("536365", "2"))]
    assert [invoice.number for invoice in read_invoices(paths)] == ["536365", "2"]


BROKEN = [
    ("InvoiceNo", "53636x", "an invoice number such as 536365 or C536379"),
    ("InvoiceNo", "", "an invoice number"),
    ("StockCode", "", "1 to 200 characters"),
    ("Description", "x" * 201, "at most 200 characters"),
    ("Quantity", "6.5", "a whole number"),
    ("Quantity", "1000001", "a whole number of at most six digits"),
    ("InvoiceDate", "2010-13-01 08:26:00", "a time such as 2010-12-01 08:26:00"),
    ("InvoiceDate", "01/12/2010", "a time such as"),
    ("UnitPrice", "free", "a price such as 2.55"),
    ("UnitPrice", "1e3", "a price such as 2.55"),
    ("UnitPrice", "2.55555", "a price such as 2.55"),
    ("CustomerID", "Smith", "empty or a number like 17850.0"),
    ("Country", " ", "1 to 200 characters"),
]


@pytest.mark.parametrize(("column", "value", "expected"), BROKEN)
def test_a_broken_value_names_file_line_column_value_and_remedy(
    tmp_path: Path, column: str, value: str, expected: str
) -> None:
    fields = GOOD.split(",")
    fields[COLUMNS.index(column)] = value
    path = write(tmp_path / "a.csv", HEADER, GOOD, ",".join(fields))
    with pytest.raises(BrokenOrders) as caught:
        read_invoices([path])
    text = str(caught.value)
    assert text.startswith(f"{path}, line 3: {column} {value!r} is not {expected}")
    assert "correct it or drop the row" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no orders in it"),
        (HEADER.encode() + b"\n", "no orders in it"),
        (b"a,b\n1,2\n", "line 1: the header is 'a,b', expected"),
        (f"{HEADER}\n{GOOD},extra\n".encode(), "line 2: 9 columns, expected 8"),
        (f"{HEADER}\n{GOOD}\n\n1,2\n".encode(), "line 4: 2 columns"),
        (f'{HEADER}\n{GOOD}\n1,2,"open\nquote\n'.encode(), "line 3: unexpected end of data: mend the quotes"),
        (f"{HEADER}\n{GOOD}\n".encode() + b"\xff\xfe", "is not UTF-8: convert the file"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('United Kingdom', 'France')}\n".encode(), "make them agree"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(BrokenOrders, match=expected):
        read_invoices([path])


def test_files_that_are_not_there_or_overlap(tmp_path: Path) -> None:
    with pytest.raises(BrokenOrders, match=r"no\.csv: No such file.*name a readable CSV file"):
        read_invoices([tmp_path / "no.csv"])
    paths = [write(tmp_path / name, HEADER, GOOD) for name in ("a.csv", "b.csv")]
    with pytest.raises(BrokenOrders, match=r"invoice 536365 stands in .* too: name one of the two files"):
        read_invoices(paths)


def test_a_record_over_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER, GOOD, '1,2,"two\nlines",x,y,z,w,v')
    with pytest.raises(BrokenOrders, match="line 3: Quantity 'x'"):
        read_invoices([path])


@given(content=st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("orders") / "a.csv"
    path.write_bytes(f"{HEADER}\n{GOOD}\n".encode() + content)
    with contextlib.suppress(BrokenOrders):
        assert read_invoices([path])[0].number == "536365"


def test_made_up_orders_read_back_and_repeat(tmp_path: Path) -> None:
    write_orders(tmp_path / "a.csv", 200, seed=7)
    write_orders(tmp_path / "b.csv", 200, seed=7)
    write_orders(tmp_path / "c.csv", 200, seed=8)
    invoices = read_invoices([tmp_path / "a.csv"])
    assert len(invoices) == 200
    assert len({invoice.country for invoice in invoices}) > 3
    assert any(invoice.number.startswith("C") and invoice.total <= 0 for invoice in invoices)
    assert any(invoice.customer is None for invoice in invoices)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (tmp_path / "a.csv").read_bytes() != (tmp_path / "c.csv").read_bytes()


def test_messages_say_what_the_invoice_says(tmp_path: Path) -> None:
    (invoice,) = read_invoices([write(tmp_path / "a.csv", HEADER, GOOD)])
    (line,) = line_messages(invoice)
    assert decode_line(encode(line)) == line
    assert line.amount == Decimal("15.30")
    header = decode_invoice(encode(invoice_message(invoice)))
    assert header == InvoiceMessage("536365", "United Kingdom", 1, Decimal("15.30"))
    assert b'"amount":"15.30"' in encode(line)  # no float on the wire


def test_rows_are_in_the_layout() -> None:
    made = list(rows(3, seed=1))
    assert tuple(made[0]) == COLUMNS
    assert all(len(row) == len(COLUMNS) for row in made)


def test_real_invoices_are_read_whole(real_orders: list[Path]) -> None:
    invoices = read_invoices(real_orders)
    assert len(invoices) == 1230
    assert sum(len(invoice.lines) for invoice in invoices) == 26_732
    assert any(invoice.number.startswith("C") and invoice.total < 0 for invoice in invoices)
    totals = {"United Kingdom": Decimal("410137.17"), "EIRE": Decimal("6431.33")}
    for country, total in totals.items():
        assert sum((i.total for i in invoices if i.country == country), Decimal()) == total
