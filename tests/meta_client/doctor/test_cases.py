"""Owners of branches, by name; and what the joined answers of several sides come to."""

import shlex
from dataclasses import replace

import pytest

from journal.records.ledger import RESTORED_BY
from journal.records.xid import XaKey, Xid
from meta_client.batches.decision import NOTHING, OVER, BatchDecision
from meta_client.batches.names import BatchName, BranchName
from meta_client.coordinator.names import BROKER, DATABASE, LogName, branch, log_of, new_nonce
from meta_client.doctor.advice import advice_on, prepared_command
from meta_client.doctor.applier import Applied
from meta_client.doctor.cases import STUCK_S, cases_of, to_ask
from meta_client.doctor.decisions import owner_of
from meta_client.doctor.evidence import (
    Answer,
    BranchAt,
    BrokerEvidence,
    DatabaseEvidence,
    Evidence,
    LogEvidence,
    OpenSession,
    PreparedXact,
    one_of,
)
from meta_client.doctor.rows import block, row_of, tell
from meta_client.doctor.verdicts import Age, BranchAnswer, Owner, Verdict
from meta_client.protocol.branch_report import Report
from meta_client.transactions.names import TableName
from meta_client.transactions.table import Recorded, RowDecision

TABLE = TableName("0123456789abcdef" * 2)
OTHER = TableName("f" * 32)
LOG = LogName("shop", "00c0ffee")
GTRID = TABLE.new_gtrid()
NOW_MS = 1_700_000_000_000
AT: BranchAt = (0, TABLE.key(GTRID, 0))
HERE = DatabaseEvidence("database shop", "postgresql:///shop", table=TABLE, has_prepared=True)


def test_a_name_says_who_decides() -> None:
    assert owner_of(AT) == (Owner.TABLE, TABLE.table_id)
    whole = LOG.xid(new_nonce())
    at_broker, in_database = branch(whole, BROKER), branch(whole, DATABASE)
    assert owner_of((3, XaKey(at_broker, "any"))) == (Owner.LOG, "shop.00c0ffee")
    assert log_of(in_database) == LOG


@pytest.mark.parametrize(
    "at",
    [
        (1, TABLE.key(GTRID, 0)),  # a branch of another broker
        (0, XaKey(TABLE.key(GTRID, 0).xid, OTHER.qualifier)),
        (0, XaKey(TABLE.key(GTRID, 0).xid, "shop")),
        (0, XaKey(Xid(1, GTRID.encode() + b"x", b"mq0"), TABLE.qualifier)),
        (0, XaKey(Xid(2, LOG.xid(new_nonce()).gtrid, BROKER), "shop")),
        (0, XaKey(Xid(1, b"shop.00c0ffee.short", BROKER), "shop")),
        (0, XaKey(branch(LOG.xid(new_nonce()), DATABASE), "shop")),
        (0, XaKey(Xid(1, b"\xff\xfe", BROKER), "shop")),
        (0, XaKey(Xid(131077, b"java", b"jms"), "$(reboot)")),
    ],
)
def test_what_only_looks_like_ours_is_a_stranger_s(at: BranchAt) -> None:
    assert owner_of(at) == (Owner.FOREIGN, at[1].qualifier)


def _report(at: BranchAt, prepared_ms: int = NOW_MS - 60_000) -> Report:
    known = {"key": str(at[1]), "broker": at[0], "state": "prepared", "messages": 1, "bytes": 9}
    return known | {"prepared_ms": prepared_ms, "decision": None}


def _found(*ats: BranchAt, old: bool = True, **more: object) -> Evidence:
    reports = {at: _report(at) for at in ats}
    return Evidence(BrokerEvidence(reports, frozenset(ats) if old else frozenset()), **more)  # type: ignore[arg-type]


def _verdict(found: Evidence) -> Verdict:
    (case,) = cases_of(found, NOW_MS, 10)
    (verdict,) = {side.verdict for side in case.sides}
    return verdict


def test_a_branch_of_a_restored_back_up_is_not_rolled_back_for_want_of_a_row() -> None:
    """A commit's row may have been deleted after the back-up; one that is there still decides."""
    finding = {"who": RESTORED_BY, "why": "restored", "evidence": "a back-up", "time_ms": 1, "state": "hazard"}
    brokers = replace(_found(AT).brokers, findings={AT: finding})
    assert _verdict(Evidence(brokers, databases=(HERE,))) is Verdict.HAZARD
    by_hand = replace(brokers, findings={AT: finding | {"who": "ann"}})
    assert _verdict(Evidence(by_hand, databases=(HERE,))) is Verdict.DECIDE
    for outcome, verdict in ((RowDecision.COMMIT, Verdict.COMMIT), (RowDecision.ROLLBACK, Verdict.ROLL_BACK)):
        table = replace(HERE, rows={GTRID: _row(outcome)})
        assert _verdict(Evidence(brokers, databases=(table,))) is verdict


def _row(outcome: RowDecision, brokers: tuple[int, ...] = (0,), hazard: str | None = None) -> Recorded:
    return Recorded(GTRID, outcome, brokers, hazard, 100.0)


def test_the_youngest_branch_is_the_age_of_all() -> None:
    """One broker was asked to prepare long ago, the other one just now: its process is at work."""
    second: BranchAt = (1, TABLE.key(GTRID, 1))
    found = _found(AT, second, databases=(HERE,))
    assert _verdict(found) is Verdict.DECIDE
    assert _verdict(replace(found, brokers=replace(found.brokers, old=frozenset({AT})))) is Verdict.WAIT


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_broker_tells_its_own_time(by_ms: int) -> None:
    """The doctor's machine is an hour off; the branch is a minute old."""
    told = BrokerEvidence({AT: _report(AT) | {"now_ms": NOW_MS}}, frozenset({AT}))
    (case,) = cases_of(Evidence(told), NOW_MS + by_ms, 10)
    (side,) = case.sides
    assert case.age is Age.OLD
    assert row_of(case, side, advice_on(case, side, "metaq txn doctor"), NOW_MS + by_ms)["age_s"] == 60


def test_databases_that_answer_to_one_table_are_not_believed() -> None:
    rows = {GTRID: _row(RowDecision.COMMIT)}
    copy = replace(HERE, label="database staging", rows=rows)
    assert _verdict(_found(AT, databases=(replace(HERE, rows=rows),))) is Verdict.COMMIT
    assert _verdict(_found(AT, databases=(HERE, copy))) is Verdict.UNKNOWN
    assert _verdict(_found(AT, databases=(replace(HERE, rows=rows, failure="it went away"),))) is Verdict.UNKNOWN


def test_a_session_that_may_hold_the_row() -> None:
    for age_s, verdict in ((None, Verdict.WAIT), (11.0, Verdict.WAIT), (9.0, Verdict.DECIDE)):
        sessions = (OpenSession("session 7", age_s),)  # one that began after PREPARE is another transaction's
        assert _verdict(_found(AT, databases=(replace(HERE, sessions=sessions),))) is verdict
    stuck = {AT: _report(AT, NOW_MS - int(STUCK_S * 1000) - 1)}
    found = _found(AT, databases=(replace(HERE, sessions=(OpenSession("session 7", 900.0),)),))
    assert _verdict(replace(found, brokers=replace(found.brokers, reports=stuck))) is Verdict.ASK


def test_a_row_in_flight_is_that_transaction_s_alone() -> None:
    """And once it has been open for so long that a person must look, the command ends the session that is known."""
    other, session = TABLE.new_gtrid(), OpenSession("session 7", 1.0, ends="KILL 7")
    here = replace(HERE, client="mysql shop")
    assert _verdict(_found(AT, databases=(replace(here, in_flight={GTRID: session}),))) is Verdict.WAIT
    assert _verdict(_found(AT, databases=(replace(here, in_flight={other: session}),))) is Verdict.DECIDE
    for holder, commands in ((session, ('mysql shop -e "KILL 7"',)), (one_of([session, session]), ())):
        found = _found(AT, databases=(replace(here, in_flight={GTRID: holder}),))
        stuck = {AT: _report(AT, NOW_MS - int(STUCK_S * 1000) - 1)}
        (case,) = cases_of(replace(found, brokers=replace(found.brokers, reports=stuck)), NOW_MS, 10)
        (side,) = case.sides
        assert (side.verdict, advice_on(case, side, "metaq txn doctor").commands) == (Verdict.ASK, commands)


@pytest.mark.parametrize(("query", "ends"), [("load", "is started again"), ("~load", "which nobody can repeat")])
def test_a_batch_of_spark_that_nobody_has_ended_is_rolled_back_by_hand(query: str, ends: str) -> None:
    name = BatchName(query, 0)
    at: BranchAt = (0, BranchName(0, "0.0.a.0").key(name))
    stuck = BrokerEvidence({at: _report(at, NOW_MS - int(STUCK_S * 1000) - 1)}, frozenset({at}))
    (case,) = cases_of(Evidence(stuck, batches={query: BatchDecision(NOTHING)}), NOW_MS, 10)
    (side,) = case.sides
    advice = advice_on(case, side, "metaq txn doctor")
    assert side.verdict is Verdict.ASK
    assert f"Spark query {query} has not decided about batch 0: " in advice.reason
    assert ends in advice.reason
    assert advice.commands == (f"metaq txn rollback {shlex.quote(str(at[1]))} --broker 0 --why '...'",)


@pytest.mark.parametrize(
    ("batches", "verdict", "says"),
    [
        ({}, Verdict.UNKNOWN, "the decision of Spark query ~load can't be read"),
        ({"~load": OVER}, Verdict.ROLL_BACK, "the end of Spark's write ~load"),
    ],
)
def test_a_batch_whose_decision_is_gone(batches: dict[str, BatchDecision], verdict: Verdict, says: str) -> None:
    name = BatchName("~load", 0)
    at: BranchAt = (0, BranchName(0, "0.0.a.0").key(name))
    (case,) = cases_of(_found(at, batches=batches), NOW_MS, 10)
    (side,) = case.sides
    assert (side.verdict, case.decision.by) == (verdict, says)
    assert says in advice_on(case, side, "metaq txn doctor").reason


def test_a_log_that_is_open_ends_its_branch_by_itself() -> None:
    xid = LOG.xid(new_nonce())
    at: BranchAt = (0, XaKey(branch(xid, BROKER), "shop"))
    stuck = BrokerEvidence({at: _report(at, NOW_MS - int(STUCK_S * 1000) - 1)}, frozenset({at}))
    log = LogEvidence("/decisions", LOG, {}, is_held=True, is_copy=False)
    (case,) = cases_of(Evidence(stuck, logs=(log,)), NOW_MS, 10)
    (side,) = case.sides
    advice = advice_on(case, side, "metaq txn doctor")
    assert (side.verdict, advice.commands) == (Verdict.ASK, ())
    assert advice.reason.endswith("yet this has been prepared for long: look why; recover() there ends it")


def test_what_is_done_is_told_in_its_row() -> None:
    (case,) = cases_of(_found(AT, databases=(HERE,)), NOW_MS, 10)
    (side,) = case.sides
    advice = advice_on(case, side, "metaq txn doctor")
    over, failed, at_work = (row_of(case, side, advice, NOW_MS) | {"commands": ["x"]} for _ in range(3))
    tell(over, Applied(side, "rolled back", is_over=True))
    tell(failed, Applied(side, "not ended: no", is_over=False))
    tell(at_work, Applied(side, "its program is at work", is_over=False, is_at_work=True))
    assert (over["done"], over["needs_person"], over["commands"]) == ("rolled back", False, [])
    assert (failed["done"], failed["needs_person"], failed["commands"]) == ("not ended: no", True, ["x"])
    assert (at_work["verdict"], at_work["reason"], at_work["commands"]) == ("at work", "its program is at work", [])
    held = list(block(over | {"locks": ["a", "b"], "vacuum_age": 5, "purge": "held back"}))
    assert [line.split(None, 1) for line in held[3:7]] == [
        ["locks", "a"],
        ["b"],
        ["holds", "up  unknown sessions, and VACUUM by 5 transactions"],
        ["purge", "held back"],
    ]


def test_a_prepared_transaction_of_several_servers() -> None:
    """A stranger's is shown for each; of a log's, that in its own database counts."""
    at: BranchAt = (0, XaKey(Xid(7, b"java", b"jms"), "java"))
    xact = PreparedXact(Xid(7, b"java", b"jdbc"))
    first = replace(HERE, table=None, server="a", prepared=(xact,), client="mysql a")
    found = _found(at, databases=(first, replace(first, server="b"), replace(first, label="the same")))
    (case,) = cases_of(found, NOW_MS, 10)
    assert [side.verdict for side in case.sides] == [Verdict.ASK] * 3
    told = prepared_command(first, xact, "commit")
    assert told == "mysql a -e \"XA COMMIT X'6a617661',X'6a646263',7\""


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_what_was_half_ended_by_hand_is_ended_alike(verb: str) -> None:
    """One side was ended by an operator: the command of the other end is no advice, and the record is needed still."""
    at: BranchAt = (0, XaKey(Xid(7, b"java", b"jms"), "java"))
    xact = PreparedXact(Xid(7, b"java", b"jdbc"), "shop")
    found = _found(at, databases=(replace(HERE, table=None, database="shop", prepared=(xact,)),))
    (case,) = cases_of(found, NOW_MS, 10)
    in_database = next(side for side in case.sides if side.xact is not None)
    asked = advice_on(case, in_database, "")
    assert [command.partition("-c")[2].split()[0] for command in asked.commands] == ['"COMMIT', '"ROLLBACK']
    assert asked.risk.startswith("a commit stores rows")
    said = BranchAnswer.COMMITTED_BY_HAND if verb == "commit" else BranchAnswer.ROLLED_BACK_BY_HAND
    brokers = replace(found.brokers, asked={at: Answer(said)})
    (case,) = cases_of(replace(found, brokers=brokers), NOW_MS, 10)
    advised = {side.place: advice_on(case, side, "") for side in case.sides}
    assert [command.split('"')[1].split()[0].lower() for command in advised["database shop"].commands] == [verb]
    assert advised["broker 0"].risk == "nobody remembers how this ended: end database shop alike first"


def test_what_ended_while_it_was_looked_at() -> None:
    """The row was gone before the table was read, since every broker had committed: the answer to STATUS counts."""
    found = _found(AT, databases=(HERE,))
    assert to_ask(found) == ({AT}, {})
    asked = {AT: Answer(BranchAnswer.COMMITTED)}
    assert _verdict(replace(found, brokers=replace(found.brokers, asked=asked))) is Verdict.DONE


def test_a_row_whose_brokers_are_not_in_the_lists() -> None:
    found = Evidence(
        BrokerEvidence(failures={1: "no master"}), (replace(HERE, rows={GTRID: _row(RowDecision.COMMIT, (0, 1))}),)
    )
    assert to_ask(found)[0] == {AT, (1, TABLE.key(GTRID, 1))}
    asked = replace(found, brokers=replace(found.brokers, asked={AT: Answer(BranchAnswer.UNKNOWN)}))
    (case,) = cases_of(asked, NOW_MS, 10)
    assert {side.place: side.verdict for side in case.sides} == {
        "broker 0": Verdict.HAZARD,
        "broker 1": Verdict.UNKNOWN,
    }
    kept = _row(RowDecision.ROLLBACK, (), "the broker committed it")
    assert _verdict(Evidence(BrokerEvidence(), (replace(HERE, rows={GTRID: kept}),))) is Verdict.HAZARD


def test_a_log_that_can_not_say_where_is_not_acted_on() -> None:
    xid = LOG.xid(new_nonce())
    at: BranchAt = (0, XaKey(branch(xid, BROKER), "shop"))
    log = LogEvidence("/decisions", LOG, {xid: "in words of another version"}, is_held=False, is_copy=False)
    assert _verdict(_found(at, logs=(log,))) is Verdict.UNKNOWN
    prepared = replace(HERE, table=None, prepared=(PreparedXact(branch(xid, DATABASE), "shop", "app", 60.0, 1),))
    assert _verdict(_found(at, logs=(log,), databases=(prepared,))) is Verdict.UNKNOWN  # there, too
    assert _verdict(_found(at, logs=(replace(log, unfinished={}),))) is Verdict.ASK
    assert _verdict(_found(at, logs=(replace(log, unfinished={}, is_held=True),))) is Verdict.WAIT
    assert _verdict(_found(at, logs=(replace(log, unfinished={}, is_copy=True),))) is Verdict.UNKNOWN
    assert _verdict(_found(at)) is Verdict.UNKNOWN


def test_a_command_leads_to_the_database_that_holds_the_transaction() -> None:
    xact = PreparedXact(branch(LOG.xid(new_nonce()), DATABASE), "it's", "app", 1.0, 1, (), 0)
    given = DatabaseEvidence("database shop", "", "dbname=shop host=db1", database="shop")
    told = prepared_command(given, xact, "rollback")
    assert shlex.split(told)[1] == "dbname=shop host=db1 dbname='it\\'s'"
    assert told.endswith(f"-c \"ROLLBACK PREPARED '{xact.xid}'\"")
    assert shlex.split(prepared_command(given, replace(xact, database="shop"), "commit"))[1] == given.address
