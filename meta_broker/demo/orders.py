"""Invoices and their lines: values, messages, and the CSV layout of the Online Retail data set.

One row an invoice line; rows of one number are one invoice. A number that starts with C is a cancellation, with
negative quantities; a customer may be unknown. Money is Decimal, in JSON a decimal string:
floats would not add up to the penny.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from meta_client.protocol.errors import MetaError

LINES_TOPIC, INVOICES_TOPIC = "order-lines", "invoices"
PARTITIONS = {LINES_TOPIC: 8, INVOICES_TOPIC: 2}

LINES_MAX = 1_000_000  # all are kept in memory; the whole data set, a year of trade, has 541,909
TEXT_CHARACTERS_MAX = 200


class BrokenOrders(MetaError):
    """A file of orders is unusable. Nothing was started; the message gives place, cause and remedy."""


class Line(NamedTuple):
    """One line of an invoice. *price* is for one, in pounds."""

    stock_code: str
    description: str
    quantity: int
    price: Decimal

    @property
    def amount(self) -> Decimal:
        return self.quantity * self.price


class Invoice(NamedTuple):
    """One invoice: one transaction, whose messages are its lines."""

    number: str
    dated: datetime  # of its first line
    customer: str | None
    country: str
    lines: Sequence[Line]

    @property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines), Decimal(0))


class LineMessage(msgspec.Struct, frozen=True):
    """One line of an invoice."""

    invoice: str
    line: int
    country: str
    stock_code: str
    quantity: int
    amount: Decimal


class InvoiceMessage(msgspec.Struct, frozen=True):
    """One invoice, with the totals of its lines."""

    invoice: str
    country: str
    lines: int
    total: Decimal


encode = msgspec.json.encode
decode_line = msgspec.json.Decoder(LineMessage).decode
decode_invoice = msgspec.json.Decoder(InvoiceMessage).decode


def line_messages(invoice: Invoice) -> list[LineMessage]:
    return [
        LineMessage(invoice.number, at, invoice.country, line.stock_code, line.quantity, line.amount)
        for at, line in enumerate(invoice.lines)
    ]


def invoice_message(invoice: Invoice) -> InvoiceMessage:
    return InvoiceMessage(invoice.number, invoice.country, len(invoice.lines), invoice.total)


_TEXT = rf"(?s)(?=.*\S)[^\0]{{1,{TEXT_CHARACTERS_MAX}}}", str.strip, f"1 to {TEXT_CHARACTERS_MAX} characters"
# The columns in their order: what they may hold, how that is read, and what is expected, for the error.
_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    "InvoiceNo": (r"[A-Z]?[0-9]{1,12}", str, "an invoice number such as 536365 or C536379"),
    "StockCode": _TEXT,
    "Description": (rf"[^\0]{{0,{TEXT_CHARACTERS_MAX}}}", str.strip, f"at most {TEXT_CHARACTERS_MAX} characters"),
    "Quantity": (r"-?[0-9]{1,6}", int, "a whole number of at most six digits"),
    "InvoiceDate": (r"[0-9-]{10} [0-9:]{8}", datetime.fromisoformat, "a time such as 2010-12-01 08:26:00"),
    "UnitPrice": (r"-?[0-9]{1,7}(\.[0-9]{1,4})?", Decimal, "a price such as 2.55"),
    "CustomerID": (r"([0-9]{1,12}(\.0)?)?", lambda v: v.partition(".")[0] or None, "empty or a number like 17850.0"),
    "Country": _TEXT,
}
COLUMNS = tuple(_FIELDS)


def read_invoices(paths: Iterable[Path]) -> list[Invoice]:
    """Read and validate every file completely, in the order given. Raises BrokenOrders."""
    found: dict[str, tuple[Path, str, Invoice, list[Line]]] = {}
    count = 0
    for path in paths:
        for where, (number, code, description, quantity, dated, price, customer, country) in _rows(path):
            if (count := count + 1) > LINES_MAX:
                raise BrokenOrders(f"{where}: more than {LINES_MAX} lines in all: name fewer files")
            if number not in found:
                lines: list[Line] = []
                found[number] = path, where, Invoice(number, dated, customer, country, lines), lines
            source, began, invoice, lines = found[number]
            if source != path:
                raise BrokenOrders(f"{where}: invoice {number} stands in {source} too: name one of the two files")
            if invoice.country != country:
                raise BrokenOrders(
                    f"{where}: Country {country!r}, but invoice {number} began with {invoice.country!r} ({began}): "
                    "make them agree"
                )
            lines.append(Line(code, description, quantity, price))
    return [invoice for _, _, invoice, _ in found.values()]


def _rows(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield the place and the values of every row."""
    at, is_empty = 1, True  # the physical line on which a record begins: a quoted field may contain line ends
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            for fields in reader:
                where = f"{path}, line {at}"
                if at == 1 and tuple(fields) != COLUMNS:
                    raise BrokenOrders(f"{where}: the header is {','.join(fields)!r}, expected {','.join(COLUMNS)!r}")
                if at > 1 and fields:  # a blank line at the end is no record
                    yield where, _values(where, fields)
                    is_empty = False
                at = reader.line_num + 1
    except OSError as error:
        raise BrokenOrders(f"{path}: {error.strerror}: name a readable CSV file") from error
    except UnicodeDecodeError as error:
        raise BrokenOrders(f"{path}: byte {error.start} is not UTF-8: convert the file") from error
    except csv.Error as error:
        raise BrokenOrders(f"{path}, line {at}: {error}: mend the quotes of that record") from error
    if is_empty:
        raise BrokenOrders(f"{path}: no orders in it: expected a header line and one row an invoice line")


def _values(where: str, fields: Sequence[str]) -> list[Any]:
    if len(fields) != len(COLUMNS):
        raise BrokenOrders(
            f"{where}: {len(fields)} columns, expected {len(COLUMNS)} ({', '.join(COLUMNS)}): "
            f"quote fields that hold commas"
        )
    values = []
    for (column, (pattern, convert, expected)), text in zip(_FIELDS.items(), fields, strict=True):
        try:
            if re.fullmatch(pattern, text) is None:
                raise ValueError
            values.append(convert(text))
        except ValueError:
            raise BrokenOrders(f"{where}: {column} {text!r} is not {expected}: correct it or drop the row") from None
    return values
