"""The final comparison: four accounts of the same orders. Pure.

Of the ordered files, the database, the broker's messages and the consumers; the Spark audit of its log is added.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from meta_broker.demo.orders import Invoice, InvoiceMessage, LineMessage

SHOWN_MAX = 5  # examples a kind of difference, and countries in the table


class Revenue(NamedTuple):
    """One side's account of one country."""

    lines: int = 0
    amount: Decimal = Decimal(0)


class Account(NamedTuple):
    """One side's account of one invoice."""

    country: str
    lines: int
    total: Decimal


class Audit(NamedTuple):
    """Result of `metaq audit`."""

    holds: bool
    sentence: str
    messages: int
    in_doubt: int


class RunEvidence(NamedTuple):
    """All accounts, taken after everything had stopped."""

    ordered: Sequence[Invoice]
    database: Mapping[str, Account]  # by invoice number
    invoice_messages: Sequence[InvoiceMessage]
    line_messages: Sequence[LineMessage]
    summed: Mapping[str, Revenue]  # by country
    orphans: Sequence[str]  # invoices whose message was seen before their row
    in_doubt: Sequence[str]  # branches still prepared, on either side
    audit: Audit


class RunVerdict(NamedTuple):
    """Result of the comparison. *problems* is empty if and only if all accounts agree."""

    invoices: Mapping[str, int]  # both, neither, mixed
    lines: Mapping[str, int]  # ordered, database, broker, consumers
    top: Sequence[tuple[str, Revenue]]  # from the consumers' sums
    problems: Sequence[str]


def judge(evidence: RunEvidence) -> RunVerdict:
    """Compare the accounts. Every difference becomes a problem, the first few of a kind by name."""
    audit = evidence.audit
    ordered = {it.number: Account(it.country, len(it.lines), it.total) for it in evidence.ordered}
    sides = {
        "database": evidence.database,
        "invoices": _accounts((m.invoice, Account(m.country, m.lines, m.total)) for m in evidence.invoice_messages),
        "order-lines": _accounts((m.invoice, Account(m.country, 1, m.amount)) for m in evidence.line_messages),
    }
    seen = set().union(*sides.values())
    differences = {
        number: [f"{side} {them.get(number)}" for side, them in sides.items() if them.get(number) != account]
        for number, account in ordered.items()
    }
    mixed = [f"{it} ({', '.join(why)}; ordered {ordered[it]})" for it, why in differences.items() if why and it in seen]
    neither = sorted(ordered.keys() - seen)
    doubled = Counter((line.invoice, line.line) for line in evidence.line_messages)
    said = {
        "ordered": _by_country(ordered.values()),
        "database": _by_country(sides["database"].values()),
        "broker": _by_country(sides["order-lines"].values()),
        "consumers": evidence.summed,
    }
    differing = [
        ", ".join([country, *(f"{side} {sums.get(country)}" for side, sums in said.items())])
        for country in sorted(set().union(*said.values()))
        if len({sums.get(country) for sums in said.values()}) > 1
    ]
    messages = len(evidence.invoice_messages) + len(evidence.line_messages)
    counted = f"{audit.messages} messages in the log, the broker gave out {messages}"
    found = {
        "invoice is mixed": mixed,
        "invoice is in neither": neither,
        "invoice was never ordered": sorted(seen - ordered.keys()),
        "line is on the broker twice": [f"{n} line {at}" for (n, at), count in sorted(doubled.items()) if count > 1],
        "message was seen before its row": evidence.orphans,
        "branch is still in doubt": evidence.in_doubt,
        "revenue differs": differing,
        "the audit does not hold": [] if audit.holds else [audit.sentence],
        "the audit counts otherwise": [] if audit.messages == messages else [counted],
        "the audit finds branches in doubt": [str(audit.in_doubt)] if audit.in_doubt else [],
    }
    problems = [f"{what}: {one}" for what, ones in found.items() for one in ones[:SHOWN_MAX]]
    problems += [f"{what}: and {len(ones) - SHOWN_MAX} more" for what, ones in found.items() if len(ones) > SHOWN_MAX]
    return RunVerdict(
        {"both": len(ordered) - len(neither) - len(mixed), "neither": len(neither), "mixed": len(mixed)},
        {side: sum(revenue.lines for revenue in sums.values()) for side, sums in said.items()},
        sorted(evidence.summed.items(), key=lambda item: (-item[1].amount, item[0]))[:SHOWN_MAX],
        problems,
    )


def _accounts(parts: Iterable[tuple[str, Account]]) -> dict[str, Account]:
    """Add up the parts of each invoice: what comes twice has twice the lines."""
    found: dict[str, Account] = {}
    for number, (country, lines, total) in parts:
        before = found.get(number, Account(country, 0, Decimal(0)))
        where = country if country == before.country else f"{before.country} and {country}"
        found[number] = Account(where, before.lines + lines, before.total + total)
    return found


def _by_country(accounts: Iterable[Account]) -> dict[str, Revenue]:
    sums: dict[str, Revenue] = defaultdict(Revenue)
    for country, lines, total in accounts:
        sums[country] = Revenue(sums[country].lines + lines, sums[country].amount + total)
    return dict(sums)
