"""Messages of the demo: JSON payloads, written by the producers, validated by their readers. Pure.

Amounts are decimal strings: floats would not add up to the penny.
"""

from decimal import Decimal
from typing import Annotated, TypeVar

import msgspec

from meta_broker.demo.orders import LINES_MAX, QUANTITY_MAX, Invoice
from meta_client.protocol.errors import MetaError

LINES_TOPIC, INVOICES_TOPIC = "order-lines", "invoices"
PARTITIONS = {LINES_TOPIC: 8, INVOICES_TOPIC: 2}

MONEY_MAX = Decimal(10) ** 13  # a million lines of a million pieces at ten pounds
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=LINES_MAX)]


class MalformedMessage(MetaError):
    """A payload that no producer of the demo wrote."""


class LineMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One invoice line."""

    invoice: _Text
    line: _Count
    country: _Text
    stock_code: _Text
    quantity: Annotated[int, msgspec.Meta(ge=-QUANTITY_MAX, le=QUANTITY_MAX)]
    price: Decimal

    def __post_init__(self) -> None:
        _check_money(self.price)

    @property
    def amount(self) -> Decimal:
        return self.quantity * self.price


class InvoiceMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One invoice, with the totals of its lines."""

    invoice: _Text
    country: _Text
    lines: _Count
    total: Decimal

    def __post_init__(self) -> None:
        _check_money(self.total)


_M = TypeVar("_M", LineMessage, InvoiceMessage)
encode = msgspec.json.encode


def line_messages(invoice: Invoice) -> list[LineMessage]:
    named = {"invoice": invoice.number, "country": invoice.country}
    return [
        LineMessage(**named, line=number, stock_code=line.stock_code, quantity=line.quantity, price=line.price)
        for number, line in enumerate(invoice.lines)
    ]


def invoice_message(invoice: Invoice) -> InvoiceMessage:
    return InvoiceMessage(
        invoice=invoice.number, country=invoice.country, lines=len(invoice.lines), total=invoice.total
    )


def decode(payload: bytes, kind: type[_M]) -> _M:
    """Decode a message. Raises MalformedMessage."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"a {kind.__name__} that reads {payload[:80]!r}: {error}") from error


def _check_money(amount: Decimal) -> None:
    if not amount.is_finite() or abs(amount) > MONEY_MAX or amount != round(amount, 4):
        raise ValueError(f"{amount} is no amount of money")
