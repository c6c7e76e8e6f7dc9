"""Invoices and their lines: values, and the CSV layout of the Online Retail data set. Pure except for opening files.

One row an invoice line; rows of one number are one invoice. A number that starts with C is a cancellation, with
negative quantities; a customer may be unknown. Money is Decimal throughout.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from meta_client.protocol.errors import MetaError

COLUMNS = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country")
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
LINES_MAX = 1_000_000  # all are kept in memory; the whole data set, a year of trade, has 541,909
QUANTITY_MAX = 1_000_000
TEXT_CHARACTERS_MAX = 200

_T = TypeVar("_T")

_NUMBER = re.compile(r"[A-Z]?[0-9]{1,12}", re.ASCII)
_QUANTITY = re.compile(r"-?[0-9]{1,7}", re.ASCII)
_PRICE = re.compile(r"-?[0-9]{1,7}(\.[0-9]{1,4})?", re.ASCII)
_CUSTOMER = re.compile(r"([0-9]{1,12})(\.0)?|", re.ASCII)


class BrokenOrders(MetaError):
    """A file of orders is unusable. Nothing was started; the message gives place, cause and remedy."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an invoice. *price* is for one, in pounds."""

    stock_code: str
    description: str
    quantity: int
    price: Decimal

    @property
    def amount(self) -> Decimal:
        return self.quantity * self.price


@dataclass(frozen=True, slots=True)
class Invoice:
    """One invoice: one transaction, whose messages are its lines."""

    number: str
    dated: datetime  # of its first line
    customer: str | None
    country: str
    lines: tuple[Line, ...]

    @property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines), Decimal(0))


@dataclass(frozen=True, slots=True)
class _Row:
    number: str
    dated: datetime
    customer: str | None
    country: str
    line: Line
    where: str


def read_invoices(paths: Iterable[Path]) -> list[Invoice]:
    """Read and validate every file completely, in the order given. Raises BrokenOrders."""
    rows: dict[str, list[_Row]] = {}
    sources: dict[str, Path] = {}
    for count, (path, row) in enumerate(_all_rows(paths)):
        if count == LINES_MAX:
            raise BrokenOrders(f"{row.where}: more than {LINES_MAX} lines in all: name fewer files")
        if sources.setdefault(row.number, path) != path:
            raise BrokenOrders(
                f"{row.where}: invoice {row.number} stands in {sources[row.number]} too: name one of the two files"
            )
        known = rows.setdefault(row.number, [])
        if known and known[0].country != row.country:
            raise BrokenOrders(
                f"{row.where}: Country {row.country!r}, but invoice {row.number} began with {known[0].country!r} "
                f"({known[0].where}): make them agree"
            )
        known.append(row)
    return [_invoice(number, found) for number, found in rows.items()]


def _all_rows(paths: Iterable[Path]) -> Iterator[tuple[Path, _Row]]:
    for path in paths:
        for row in _rows(path):
            yield path, row


def _invoice(number: str, rows: Sequence[_Row]) -> Invoice:
    first = rows[0]
    return Invoice(number, first.dated, first.customer, first.country, tuple(row.line for row in rows))


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _checked(path, file)
    except OSError as error:
        raise BrokenOrders(f"{path}: {error.strerror}: name a readable CSV file") from error
    except UnicodeDecodeError as error:
        raise BrokenOrders(f"{path}: byte {error.start} is not UTF-8: convert the file") from error


def _checked(path: Path, file: Iterable[str]) -> Iterator[_Row]:
    reader = csv.reader(file, strict=True)
    at = 1  # the physical line on which the record began: a quoted field may contain line ends
    count = 0
    try:
        for fields in reader:
            where = f"{path}, line {at}"
            if at == 1:
                _check_header(where, fields)
            elif fields:  # a blank line at the end is no record
                yield _row(where, fields)
                count += 1
            at = reader.line_num + 1
    except csv.Error as error:
        raise BrokenOrders(f"{path}, line {at}: {error}: mend the quotes of that record") from error
    if count == 0:
        raise BrokenOrders(f"{path}: no orders in it: expected a header line and one row an invoice line")


def _check_header(where: str, fields: Sequence[str]) -> None:
    if tuple(fields) != COLUMNS:
        raise BrokenOrders(f"{where}: the header is {','.join(fields)!r}, expected {','.join(COLUMNS)!r}")


def _row(where: str, fields: Sequence[str]) -> _Row:
    if len(fields) != len(COLUMNS):
        raise BrokenOrders(
            f"{where}: {len(fields)} columns, expected {len(COLUMNS)} ({', '.join(COLUMNS)}): "
            f"quote fields that hold commas"
        )

    def take(column: str, parse: Callable[[str], _T], expected: str) -> _T:
        value = fields[COLUMNS.index(column)]
        try:
            return parse(value)
        except ValueError:
            raise BrokenOrders(f"{where}: {column} {value!r} is not {expected}: correct it or drop the row") from None

    line = Line(
        take("StockCode", _text, f"1 to {TEXT_CHARACTERS_MAX} characters"),
        take("Description", _maybe_text, f"at most {TEXT_CHARACTERS_MAX} characters"),
        take("Quantity", _quantity, f"a whole number within {QUANTITY_MAX}"),
        take("UnitPrice", _price, "a price such as 2.55"),
    )
    return _Row(
        take("InvoiceNo", _number, "an invoice number such as 536365 or C536379"),
        take("InvoiceDate", lambda value: datetime.strptime(value, TIME_FORMAT), "a time such as 2010-12-01 08:26:00"),
        take("CustomerID", _customer, "empty or a number such as 17850.0"),
        take("Country", _text, f"1 to {TEXT_CHARACTERS_MAX} characters"),
        line,
        where,
    )


def _matched(pattern: re.Pattern[str], value: str) -> re.Match[str]:
    if (match := pattern.fullmatch(value)) is None:
        raise ValueError
    return match


def _number(value: str) -> str:
    return _matched(_NUMBER, value)[0]


def _quantity(value: str) -> int:
    if abs(quantity := int(_matched(_QUANTITY, value)[0])) > QUANTITY_MAX:
        raise ValueError
    return quantity


def _price(value: str) -> Decimal:
    return Decimal(_matched(_PRICE, value)[0])


def _customer(value: str) -> str | None:
    return _matched(_CUSTOMER, value)[1]


def _maybe_text(value: str) -> str:
    if len(value) > TEXT_CHARACTERS_MAX or "\0" in value:
        raise ValueError
    return value.strip()


def _text(value: str) -> str:
    if not (text := _maybe_text(value)):
        raise ValueError
    return text
