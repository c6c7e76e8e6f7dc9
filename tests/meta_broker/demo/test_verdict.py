"""The comparison finds every difference: start from accounts that agree, spoil one thing, and it must be told."""

import random
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

import pytest

from meta_broker.demo.kills import Kill, appointments
from meta_broker.demo.orders import Invoice, Line, invoice_message, line_messages
from meta_broker.demo.report import RunReport
from meta_broker.demo.verdict import Account, Audit, Revenue, RunEvidence, judge


def invoice(number: str, country: str, *prices: str) -> Invoice:
    lines = tuple(Line("X", "thing", 2, Decimal(price)) for price in prices)
    return Invoice(number, datetime(2010, 12, 1), None, country, lines)


ORDERED = [invoice("1", "France", "1.50", "2"), invoice("2", "EIRE", "0.85"), invoice("3", "France", "10")]


def add(sums: Revenue, lines: int, amount: Decimal) -> Revenue:
    return Revenue(sums.lines + lines, sums.amount + amount)


def good() -> RunEvidence:
    summed: dict[str, Revenue] = {}
    for one in ORDERED:
        summed[one.country] = add(summed.get(one.country, Revenue()), len(one.lines), one.total)
    return RunEvidence(
        ordered=ORDERED,
        database={one.number: Account(one.country, len(one.lines), one.total) for one in ORDERED},
        invoice_messages=[invoice_message(one) for one in ORDERED],
        line_messages=[message for one in ORDERED for message in line_messages(one)],
        summed=summed,
        orphans=[],
        in_doubt=[],
        audit=Audit(holds=True, sentence="all hold", messages=7, in_doubt=0),
    )


def test_accounts_that_agree() -> None:
    verdict = judge(good())
    assert not verdict.problems
    assert verdict.invoices == {"both": 3, "neither": 0, "mixed": 0}
    assert verdict.lines == dict.fromkeys(("ordered", "database", "broker", "consumers"), 4)
    assert verdict.top == [("France", Revenue(3, Decimal("27.00"))), ("EIRE", Revenue(1, Decimal("1.70")))]


def without_row(e: RunEvidence) -> RunEvidence:
    return e._replace(database={k: v for k, v in e.database.items() if k != "1"})


def without_messages(e: RunEvidence) -> RunEvidence:
    return e._replace(
        invoice_messages=[m for m in e.invoice_messages if m.invoice != "1"],
        line_messages=[m for m in e.line_messages if m.invoice != "1"],
    )


def spoil_row(e: RunEvidence) -> RunEvidence:
    return e._replace(database={**e.database, "1": Account("France", 2, Decimal("7.01"))})


SPOILED: dict[str, tuple[Callable[[RunEvidence], RunEvidence], str, tuple[int, int, int]]] = {
    "row lost": (without_row, "invoice is mixed: 1 (database None; ordered Account(", (2, 0, 1)),
    "messages lost": (without_messages, "invoice is mixed: 1 (invoices None, order-lines None; ordered", (2, 0, 1)),
    "both lost": (lambda e: without_messages(without_row(e)), "invoice is in neither: 1", (2, 1, 0)),
    "row differs": (
        spoil_row,
        "invoice is mixed: 1 (database Account(country='France', lines=2",
        (2, 0, 1),
    ),
    "invoice doubled": (
        lambda e: e._replace(invoice_messages=[*e.invoice_messages, e.invoice_messages[0]]),
        "invoice is mixed: 1 (invoices Account(country='France', lines=4,",
        (2, 0, 1),
    ),
    "line doubled": (
        lambda e: e._replace(line_messages=[*e.line_messages, e.line_messages[0]]),
        "line is on the broker twice: 1 line 0",
        (2, 0, 1),
    ),
    "line lost": (
        lambda e: e._replace(line_messages=e.line_messages[1:]),
        "invoice is mixed: 1 (order-lines Account(country='France', lines=1,",
        (2, 0, 1),
    ),
    "lines without invoice": (
        lambda e: e._replace(invoice_messages=e.invoice_messages[1:]),
        "invoice is mixed: 1 (invoices None; ordered",
        (2, 0, 1),
    ),
    "never ordered": (lambda e: e._replace(ordered=ORDERED[1:]), "invoice was never ordered: 1", (2, 0, 0)),
    "summed twice": (
        lambda e: e._replace(summed={**e.summed, "EIRE": Revenue(2, Decimal("3.40"))}),
        "revenue differs: EIRE",
        (3, 0, 0),
    ),
    "not summed": (
        lambda e: e._replace(summed={"France": e.summed["France"]}),
        "revenue differs: EIRE",
        (3, 0, 0),
    ),
    "seen too early": (
        lambda e: e._replace(orphans=["2"]),
        "message was seen before its row: 2",
        (3, 0, 0),
    ),
    "in doubt": (lambda e: e._replace(in_doubt=["x"]), "branch is still in doubt: x", (3, 0, 0)),
    "audit fails": (
        lambda e: e._replace(audit=e.audit._replace(holds=False)),
        "the audit does not hold",
        (3, 0, 0),
    ),
    "audit counts otherwise": (
        lambda e: e._replace(audit=e.audit._replace(messages=8)),
        "the audit counts otherwise: 8 messages in the log, the broker gave out 7",
        (3, 0, 0),
    ),
    "audit in doubt": (
        lambda e: e._replace(audit=e.audit._replace(in_doubt=1)),
        "the audit finds branches in doubt: 1",
        (3, 0, 0),
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_difference_is_told(name: str) -> None:
    spoil, problem, counts = SPOILED[name]
    verdict = judge(spoil(good()))
    assert any(problem in found for found in verdict.problems), verdict.problems
    assert tuple(verdict.invoices.values()) == counts


def test_many_differences_are_counted_not_listed() -> None:
    ordered = [invoice(str(number), "France", "1") for number in range(20)]
    verdict = judge(good()._replace(ordered=ordered, database={}))
    assert sum(problem.startswith("invoice is") for problem in verdict.problems) < 20
    assert any("more" in problem for problem in verdict.problems)


@pytest.mark.parametrize("problem", [None, "the broker was still alive"])
def test_a_kill_that_was_not_what_it_claims_is_a_problem(problem: str | None) -> None:
    evidence = good()
    kill = Kill("seen", 1.0, problem)
    report = RunReport(judge(evidence), {"broker": kill}, 3, evidence.audit, seed=1, seconds=2.0)
    assert bool(report.problems) is (problem is not None)
    assert report.as_json()["well"] is (problem is None)
    assert report.table().row_count > 10
    assert ("all accounts agree" in report.lines()[-1]) is (problem is None)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("invoices", [100, 1230])
def test_appointments_leave_work_before_between_and_after(seed: int, invoices: int) -> None:
    plan = appointments(invoices, random.Random(seed))
    counts = [0, *(appointment.invoices for appointment in plan), invoices]
    assert counts == sorted(counts)
    assert min(after - before for before, after in pairwise(counts)) >= 8
    assert [appointment.until for appointment in plan] == counts[2:]
    assert [it[:3] for it in plan] == [it[:3] for it in appointments(invoices, random.Random(seed))]
