"""Lines of the audit log of a broker with access rules, and bounds on what one principal may write into it."""

import re
from collections import Counter

from journal.records.xid import XaKey, Xid
from meta_broker.access.repeats import FREE_ACTIONS_MAX
from meta_client.protocol.requests import (
    BranchCommand,
    BranchVerb,
    Get,
    ResetGroup,
    Stats,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionVerb,
)
from meta_client.protocol.responses import Result
from tests.fixtures.access import audit_lines, logged_in
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.peers import MIB, anonymous_bytes

KEY = XaKey(Xid(1, b"g", b"b"), "shop-1")


def test_who_ends_a_branch_that_another_began_is_in_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    broker, keys = served[0], [XaKey(Xid(1, bytes([number]), b"of-another"), "shop-2") for number in range(4)]
    verbs = [TransactionVerb.ROLLBACK, TransactionVerb.COMMIT_ONE_PHASE, TransactionVerb.PREPARE]
    with logged_in(broker.port, "shop") as shop, logged_in(broker.port, "operator") as operator:
        for key in keys:
            shop.verb(TransactionVerb.BEGIN, key)
            shop.put("orders", 2, b"in a branch", key)
        for verb, key in zip(verbs, keys, strict=False):
            operator.verb(verb, key)
        shop.verb(TransactionVerb.COMMIT_TWO_PHASE, keys[2])
        shop.verb(TransactionVerb.COMMIT_ONE_PHASE, keys[3])
    told = [re.sub(r":\d+ ", " ", line) for line in audit_lines(broker) if "began_by=" in line]
    assert told == [
        f"action=branch-{action} outcome=done principal=operator conn=127.0.0.1 key={key} began_by=shop"
        for action, key in zip(("rollback", "commit-one-phase", "prepare"), keys, strict=False)
    ]


def test_operators_actions_are_in_the_audit_log_with_what_came_of_them(served: tuple[BrokerProcess, str]) -> None:
    broker = served[0]
    with logged_in(broker.port, "operator") as operator:
        settings = (("partitions", "3"),)
        assert operator.result(TopicCommand(TopicVerb.CREATE, "orders", settings, 1)).status == 400
        assert operator.result(TopicCommand(TopicVerb.CLOSE, "invoices", (("partitions", "1"),), 2)).is_success
        assert operator.result(TopicCommand(TopicVerb.OPEN, "invoices", (), 3)).is_success
        assert operator.result(TakeCheckpoint(4)).is_success
        for _ in range(150):  # more than a log takes of anything else
            assert operator.result(Stats("reset", 5)).is_success
        assert operator.result(TopicCommand(TopicVerb.SHOW, "invoices", (), 6)).is_success
    lines = [re.sub(r":\d+", "", line) for line in audit_lines(broker) if "principal=operator" in line]
    by = "principal=operator conn=127.0.0.1"
    wanted = [
        f'action=topic-create outcome=refused-400 {by} topic=orders settings="partitions=3"',
        f'action=topic-close outcome=done {by} topic=invoices settings="partitions=1"',
        f"action=topic-open outcome=done {by} topic=invoices",
        f"action=checkpoint outcome=done {by}",
        *[f"action=stats-reset outcome=done {by}"] * 150,
    ]
    assert [line for line in lines if line in wanted] == wanted
    assert not [line for line in lines if "show" in line]


def test_resets_of_groups_are_in_the_audit_log_and_refused_without_rights(served: tuple[BrokerProcess, str]) -> None:
    broker = served[0]
    with logged_in(broker.port, "reader") as reader, logged_in(broker.port, "shop") as shop:
        assert reader.result(ResetGroup("orders", "billing", 1, -1, 50, 1)).is_success
        assert reader.result(ResetGroup("orders", "audit", 1, 0, 50, 1)).status == 405
        assert shop.result(ResetGroup("orders", "billing", 1, 0, 50, 1)).status == 405
    told = [line for line in audit_lines(broker) if re.search("group-reset.* principal=(reader|shop) ", line)]
    lines = [re.sub(r":\d+", "", line) for line in told]
    by, of = "principal=reader conn=127.0.0.1", "topic=orders partition=1"
    assert lines == [
        f"action=group-reset outcome=done {by} group=billing {of} after=50",
        f'action=group-reset outcome=denied {by} needs="groups audit" group=audit {of} before=0 after=50',
        f'action=group-reset outcome=denied {by.replace("reader", "shop")} needs="consume orders" '
        f"group=billing {of} before=0 after=50",
    ]


def test_resets_again_and_again_do_not_fill_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    """Refuses what is not noted, so that it is not done; whoever may consume may have a reset noted."""
    broker = served[0]
    statuses = Counter[int]()
    with logged_in(broker.port, "eager") as eager:
        for first in range(0, FREE_ACTIONS_MAX + 500, 500):
            eager.send(*[ResetGroup("orders", "billing", 1, 0, first + number, number) for number in range(500)])
            statuses.update(answer.status for _ in range(500) if isinstance(answer := eager.receive(), Result))
    assert statuses == {200: FREE_ACTIONS_MAX, 429: 500}
    assert (
        len([line for line in audit_lines(broker) if "group-reset" in line and "=eager " in line]) == FREE_ACTIONS_MAX
    )
    with logged_in(broker.port, "operator") as operator:
        assert operator.result(ResetGroup("orders", "billing", 1, 0, 50, 1)).is_success


def test_denials_of_made_up_names_fill_neither_memory_nor_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    """Each name is another denial, and takes 4 KB in whatever remembers it."""
    broker, count = served[0], 30_000
    with logged_in(broker.port, "nothing") as nothing:
        before = anonymous_bytes(broker.pid)
        for start in range(0, count, 100):
            nothing.send(*(Get(f"{start + n:08}" * 500, "g", 0, 0, 100, n) for n in range(100)))
            for _ in range(100):
                answer = nothing.receive()
                assert isinstance(answer, Result)
                assert answer.status == 405
        assert anonymous_bytes(broker.pid) - before < 40 * MIB
    denied = [line for line in audit_lines(broker) if line.startswith("action=get outcome=denied principal=nothing")]
    assert 50 < len(denied) < 1_000  # a hundred a minute


def test_decisions_about_made_up_branches_do_not_fill_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    """Each is another refusal, and costs nothing; who sends to a transaction may ask for them."""
    broker, count = served[0], 2_000
    keys = [XaKey(Xid(1, b"%d" % number, b"made up"), "made-up") for number in range(count)]
    with logged_in(broker.port, "inventive") as inventive:
        for first in range(0, count, 200):
            some = keys[first : first + 200]
            inventive.send(*[BranchCommand(BranchVerb.ROLLBACK, key, "ann", "x" * 300, 1) for key in some])
            for _ in some:
                answer = inventive.receive()
                assert isinstance(answer, Result)
                assert answer.status == 500
    told = [line for line in audit_lines(broker) if "principal=inventive" in line]
    assert 50 < len([line for line in told if "outcome=refused-500" in line]) < 500  # a hundred a minute


def test_findings_again_and_again_do_not_fill_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    """Refuses what is not noted: an equal finding costs nothing, and is success."""
    broker, count = served[0], FREE_ACTIONS_MAX + 500
    key, statuses = XaKey(Xid(1, b"found", b"b"), "made-up"), Counter[int]()
    with logged_in(broker.port, "finder") as finder:
        for first in range(0, count, 500):
            finder.send(*[BranchCommand(BranchVerb.MIXED, key, "ann", "why", first, "seen") for _ in range(500)])
            statuses.update(answer.status for _ in range(500) if isinstance(answer := finder.receive(), Result))
        assert statuses == {200: FREE_ACTIONS_MAX, 429: 500}
        finder.verb(TransactionVerb.FORGET, key)


def test_logins_again_and_again_do_not_fill_the_audit_log(served: tuple[BrokerProcess, str]) -> None:
    for _ in range(250):
        logged_in(served[0].port, "repeated").close()
    told = [line for line in audit_lines(served[0]) if line.startswith("action=login outcome=done principal=repeated")]
    assert 50 < len(told) < 250
