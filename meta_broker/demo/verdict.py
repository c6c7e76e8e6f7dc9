"""The final comparison: four accounts of the same orders. Pure.

They are the ordered files, the database, the broker's messages and the consumers' sums; the Spark audit of the broker's
log is added.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from meta_broker.demo.messages import InvoiceMessage, LineMessage
from meta_broker.demo.orders import Invoice

SHOWN_MAX = 5  # examples a kind of difference, and countries in the table


@dataclass(frozen=True, slots=True)
class Account:
    """One side's account of one invoice."""

    country: str
    lines: int
    total: Decimal


@dataclass(frozen=True, slots=True)
class Revenue:
    """One side's account of one country."""

    lines: int = 0
    amount: Decimal = Decimal(0)

    def plus(self, lines: int, amount: Decimal) -> "Revenue":
        return Revenue(self.lines + lines, self.amount + amount)


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of `metaq audit`."""

    holds: bool
    sentence: str
    messages: int
    in_doubt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All accounts, taken after everything had stopped."""

    ordered: Sequence[Invoice]
    database: Mapping[str, Account]  # by invoice number
    invoice_messages: Sequence[InvoiceMessage]
    line_messages: Sequence[LineMessage]
    summed: Mapping[str, Revenue]  # by country
    orphans: Sequence[str]  # invoices whose message was seen before their row
    in_doubt: Sequence[str]  # branches still prepared, on either side
    audit: Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the comparison. `problems` is empty if and only if all accounts agree."""

    in_both: int
    in_neither: int
    mixed: int
    lines_ordered: int
    lines_in_database: int
    lines_on_broker: int
    lines_consumed: int
    top: Sequence[tuple[str, Revenue]]  # from the consumers' sums
    problems: Sequence[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not self.problems


def judge(evidence: Evidence) -> Verdict:
    """Compare the accounts. Every difference becomes a problem, the first few of a kind by name."""
    on_broker = broker_accounts(evidence.invoice_messages, evidence.line_messages)
    classes = {invoice.number: classify(invoice, evidence.database, on_broker) for invoice in evidence.ordered}
    counts = Counter(kind for kind, _ in classes.values())
    ordered_lines = sum(len(invoice.lines) for invoice in evidence.ordered)
    problems = [
        *_shown("invoice is mixed", [f"{n} ({why})" for n, (kind, why) in classes.items() if kind == "mixed"]),
        *_shown("invoice is in neither", [n for n, (kind, _) in classes.items() if kind == "neither"]),
        *_shown("invoice was never ordered", sorted((evidence.database.keys() | on_broker.keys()) - classes.keys())),
        *_shown("line is on the broker twice", doubled_lines(evidence.line_messages)),
        *_shown("message was seen before its row", evidence.orphans),
        *_shown("branch is still in doubt", evidence.in_doubt),
        *_shown("revenue differs", revenue_differences(evidence, on_broker)),
        *audit_problems(evidence.audit, len(evidence.invoice_messages) + len(evidence.line_messages)),
    ]
    top = sorted(evidence.summed.items(), key=lambda item: (-item[1].amount, item[0]))[:SHOWN_MAX]
    return Verdict(
        in_both=counts["both"],
        in_neither=counts["neither"],
        mixed=counts["mixed"],
        lines_ordered=ordered_lines,
        lines_in_database=sum(account.lines for account in evidence.database.values()),
        lines_on_broker=len(evidence.line_messages),
        lines_consumed=sum(revenue.lines for revenue in evidence.summed.values()),
        top=top,
        problems=problems,
    )


def classify(invoice: Invoice, database: Mapping[str, Account], broker: Mapping[str, Account | str]) -> tuple[str, str]:
    """Return `both`, `neither` or `mixed`, and why: only a whole invoice, the same on both sides, is in both."""
    ordered = Account(invoice.country, len(invoice.lines), invoice.total)
    row, messages = database.get(invoice.number), broker.get(invoice.number)
    match row, messages:
        case None, None:
            return "neither", ""
        case None, _:
            return "mixed", "on the broker only"
        case _, None:
            return "mixed", "in the database only"
    if isinstance(messages, str):
        return "mixed", messages
    if row != ordered:
        return "mixed", f"the database says {row}, ordered was {ordered}"
    if messages != ordered:
        return "mixed", f"the broker says {messages}, ordered was {ordered}"
    return "both", ""


def broker_accounts(invoices: Iterable[InvoiceMessage], lines: Iterable[LineMessage]) -> dict[str, Account | str]:
    """Return the broker's account of each invoice; a text if its two topics contradict each other."""
    found: dict[str, Account | str] = {}
    sums: dict[str, Revenue] = defaultdict(Revenue)
    countries: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        sums[line.invoice] = sums[line.invoice].plus(1, line.amount)
        countries[line.invoice].add(line.country)
    for message in invoices:
        number = message.invoice
        if number in found:
            found[number] = "two messages on the broker"
        elif countries[number] != {message.country} or sums[number] != Revenue(message.lines, message.total):
            found[number] = f"its message says {message.lines} lines and {message.total}, they are {sums[number]}"
        else:
            found[number] = Account(message.country, message.lines, message.total)
    for number in sums.keys() - found.keys():
        found[number] = "lines without an invoice on the broker"
    return found


def doubled_lines(lines: Iterable[LineMessage]) -> list[str]:
    counts = Counter((line.invoice, line.line) for line in lines)
    return [f"{invoice} line {number}" for (invoice, number), count in sorted(counts.items()) if count > 1]


def revenue_differences(evidence: Evidence, on_broker: Mapping[str, Account | str]) -> list[str]:
    """Return the countries for which orders, database, broker and consumers differ."""
    accounts = [account for account in on_broker.values() if isinstance(account, Account)]
    said = {
        "ordered": _by_country((i.country, len(i.lines), i.total) for i in evidence.ordered),
        "database": _by_country((a.country, a.lines, a.total) for a in evidence.database.values()),
        "broker": _by_country((a.country, a.lines, a.total) for a in accounts),
        "consumers": dict(evidence.summed),
    }
    countries = sorted(set().union(*said.values()))
    return [
        ", ".join([country, *(f"{who} {sums.get(country)}" for who, sums in said.items())])
        for country in countries
        if len({sums.get(country) for sums in said.values()}) > 1
    ]


def audit_problems(audit: Audit, messages: int) -> list[str]:
    """Return the problems the audit of the log found."""
    problems = [] if audit.holds else [f"the audit does not hold: {audit.sentence}"]
    if audit.messages != messages:
        problems.append(f"the audit counts {audit.messages} messages in the log, the broker gave out {messages}")
    if audit.in_doubt:
        problems.append(f"the audit finds {audit.in_doubt} branches in doubt")
    return problems


def _by_country(facts: Iterable[tuple[str, int, Decimal]]) -> dict[str, Revenue]:
    sums: dict[str, Revenue] = defaultdict(Revenue)
    for country, lines, amount in facts:
        sums[country] = sums[country].plus(lines, amount)
    return dict(sums)


def _shown(what: str, found: Sequence[str]) -> list[str]:
    more = [f"{what}: and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
    return [f"{what}: {one}" for one in found[:SHOWN_MAX]] + more
