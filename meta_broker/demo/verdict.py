"""The final comparison: four accounts of the same orders. Pure.

They are the ordered files, the database, the broker's messages and the consumers' sums; the Spark audit of the broker's
log is added.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from meta_broker.demo.messages import InvoiceMessage, LineMessage
from meta_broker.demo.orders import Invoice

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


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The broker has no account of an invoice: its two topics contradict each other."""

    what: str


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
    """Result of the comparison. `problems` is empty if and only if all accounts agree."""

    invoices: Mapping[str, int]  # both, neither, mixed
    lines: Mapping[str, int]  # ordered, database, broker, consumers
    top: Sequence[tuple[str, Revenue]]  # from the consumers' sums
    problems: Sequence[str]


def judge(evidence: RunEvidence) -> RunVerdict:
    """Compare the accounts. Every difference becomes a problem, the first few of a kind by name."""
    database, audit = evidence.database, evidence.audit
    ordered = {it.number: Account(it.country, len(it.lines), it.total) for it in evidence.ordered}
    on_broker = _accounts(evidence.invoice_messages, evidence.line_messages)
    classes = {n: _classify(account, database.get(n), on_broker.get(n)) for n, account in ordered.items()}
    counts = Counter(kind for kind, _ in classes.values())
    doubled = Counter((line.invoice, line.line) for line in evidence.line_messages)
    whole = [account for account in on_broker.values() if isinstance(account, Account)]
    said = {
        "ordered": _by_country(ordered.values()),
        "database": _by_country(database.values()),
        "broker": _by_country(whole),
        "consumers": evidence.summed,
    }
    differing = [
        ", ".join([country, *(f"{side} {sums.get(country)}" for side, sums in said.items())])
        for country in sorted(set().union(*said.values()))
        if len({sums.get(country) for sums in said.values()}) > 1
    ]
    messages = len(evidence.invoice_messages) + len(evidence.line_messages)
    found = {
        "invoice is mixed": [f"{n} ({why})" for n, (kind, why) in classes.items() if kind == "mixed"],
        "invoice is in neither": [n for n, (kind, _) in classes.items() if kind == "neither"],
        "invoice was never ordered": sorted((database.keys() | on_broker.keys()) - classes.keys()),
        "line is on the broker twice": [f"{n} line {at}" for (n, at), count in sorted(doubled.items()) if count > 1],
        "message was seen before its row": evidence.orphans,
        "branch is still in doubt": evidence.in_doubt,
        "revenue differs": differing,
        "the audit does not hold": [] if audit.holds else [audit.sentence],
        "the audit counts otherwise": []
        if audit.messages == messages
        else [f"{audit.messages} messages in the log, the broker gave out {messages}"],
        "the audit finds branches in doubt": [str(audit.in_doubt)] if audit.in_doubt else [],
    }
    problems = [f"{what}: {one}" for what, ones in found.items() for one in ones[:SHOWN_MAX]]
    problems += [f"{what}: and {len(ones) - SHOWN_MAX} more" for what, ones in found.items() if len(ones) > SHOWN_MAX]
    return RunVerdict(
        {kind: counts[kind] for kind in ("both", "neither", "mixed")},
        {
            **{side: sum(account.lines for account in of.values()) for side, of in list(said.items())[:2]},
            "broker": len(evidence.line_messages),
            "consumers": sum(revenue.lines for revenue in evidence.summed.values()),
        },
        sorted(evidence.summed.items(), key=lambda item: (-item[1].amount, item[0]))[:SHOWN_MAX],
        problems,
    )


def _classify(ordered: Account, row: Account | None, messages: Account | Contradiction | None) -> tuple[str, str]:
    """Return `both`, `neither` or `mixed`, and why: only a whole invoice, the same on both sides, is in both."""
    if row is None or messages is None:
        if row is None and messages is None:
            return "neither", ""
        return "mixed", "on the broker only" if row is None else "in the database only"
    if isinstance(messages, Contradiction):
        return "mixed", messages.what
    for side, account in (("database", row), ("broker", messages)):
        if account != ordered:
            return "mixed", f"the {side} says {account}, ordered was {ordered}"
    return "both", ""


def _accounts(invoices: Iterable[InvoiceMessage], lines: Iterable[LineMessage]) -> dict[str, Account | Contradiction]:
    found: dict[str, Account | Contradiction] = {}
    parts: dict[str, list[LineMessage]] = defaultdict(list)
    for line in lines:
        parts[line.invoice].append(line)
    for message in invoices:
        number, of_it = message.invoice, parts[message.invoice]
        said = message.lines, message.total
        sums = len(of_it), sum((line.amount for line in of_it), Decimal(0))
        if number in found:
            found[number] = Contradiction("two messages on the broker")
        elif sums != said or {line.country for line in of_it} != {message.country}:
            found[number] = Contradiction(
                f"its message says {said[0]} lines and {said[1]}, they are {sums[0]} and {sums[1]}"
            )
        else:
            found[number] = Account(message.country, *said)
    return dict.fromkeys(parts, Contradiction("lines without an invoice on the broker")) | found


def _by_country(accounts: Iterable[Account]) -> dict[str, Revenue]:
    sums: dict[str, Revenue] = defaultdict(Revenue)
    for country, lines, total in accounts:
        sums[country] = Revenue(sums[country].lines + lines, sums[country].amount + total)
    return dict(sums)
