"""Every verb of the wire against every right: only the right one lets it through."""

from itertools import product
from typing import get_args

from journal.records.xid import LocalKey, XaKey, Xid
from meta_broker.access.needs import KINDS, Needs
from meta_broker.access.principal import Principal, Right
from meta_broker.handlers.context import WaitingFetch
from meta_broker.handlers.dispatch import Handled
from meta_client.protocol.requests import (
    TEXTS_OF_BRANCH,
    Authenticate,
    BranchCommand,
    BranchVerb,
    Count,
    Dropped,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Replicate,
    Request,
    ResetGroup,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.status import Status

XA, LOCAL = XaKey(Xid(1, b"g", b"b"), "mine"), LocalKey("s", 1)
ANY: frozenset[Right] = frozenset()  # any principal
P, C, G, A, D, R = Right.PRODUCE, Right.CONSUME, Right.GROUPS, Right.ADMIN, Right.DECIDE, Right.REPLICATE


def put(key: XaKey | LocalKey | None) -> Put:
    return Put("mine", 0, 0, None, key, 1, b"")


def by_hand(verb: BranchVerb) -> BranchCommand:
    who, why, evidence = (("w", "y", "e")[: TEXTS_OF_BRANCH[verb]] + ("",) * 3)[:3]
    return BranchCommand(verb, XA, who, why, 1, evidence)


CASES: list[tuple[Request | Dropped, list[frozenset[Right]]]] = [
    # a request, and the sets of rights each of which is enough, with "mine" as name of everything
    (put(None), [frozenset({P})]),
    (put(LOCAL), [frozenset({P})]),
    (put(XA), [frozenset({P, D})]),
    (MultiPut("mine", 0, 1, 0, None, None, 1, b""), [frozenset({P})]),
    (MultiPut("mine", 0, 1, 0, None, XA, 1, b""), [frozenset({P, D})]),
    (Get("mine", "mine", 0, 0, 1, 1), [frozenset({C, G})]),
    (Fetch("mine", "mine", 0, 0, 1, 1, 1, 1), [frozenset({C, G})]),
    (OffsetQuery("mine", "mine", 0, 0, 1), [frozenset({C, G})]),
    (Offsets("mine", 0, 0, 1), [frozenset({C})]),
    (Find("mine", 0, 0, 1, b"k", 1), [frozenset({C})]),
    (Count("mine", 0, 0, 1), [frozenset({C})]),
    (ResetGroup("mine", "mine", 0, -1, 0, 1), [frozenset({C, G})]),
    (TakeCheckpoint(1), [frozenset({A})]),
    (Stats("", 1), [ANY]),
    (Stats("mine", 1), [ANY]),
    (Stats("config", 1), [frozenset({A})]),
    (Stats("reset", 1), [frozenset({A})]),
    (Replicate(1), [frozenset({R})]),
    (Sync("mine", 0, 0, 1, None, 1, b""), [frozenset({R})]),
    (Dropped(1, Status.BAD_REQUEST, ""), [ANY]),
    *((TopicCommand(verb, "mine", (), 1), [frozenset({A})]) for verb in TopicVerb if verb is not TopicVerb.SHOW),
    (TopicCommand(TopicVerb.SHOW, "mine", (), 1), [frozenset({P}), frozenset({C}), frozenset({A})]),
    *((by_hand(verb), [frozenset({D})]) for verb in BranchVerb if verb is not BranchVerb.LEDGER),
    *(
        (TransactionCommand(XA, "s", verb, None, "mine", 1), [frozenset({D})])
        for verb in TransactionVerb
        if verb is not TransactionVerb.RECOVER
    ),
    (TransactionCommand(None, "s", TransactionVerb.RECOVER, None, "mine", 1), [frozenset({D})]),
    *(
        (TransactionCommand(LOCAL, "s", verb, None, None, 1), [frozenset({P})])
        for verb in TransactionVerb
        if verb is not TransactionVerb.RECOVER
    ),
]


def principal(rights: frozenset[Right], pattern: str = "mine") -> Principal:
    lists = {right.value: (pattern,) if right in rights else () for right in Right if right is not R}
    return Principal(name="p", replicate=R in rights, **lists)  # type: ignore[arg-type]


def needs_of(request: Request | Dropped) -> Needs:
    needs = KINDS[type(request)].needs
    assert needs is not None
    return needs(request)


def may(who: Principal, request: Request | Dropped) -> bool:
    return all(need.is_met_by(who) for need in needs_of(request))


def test_every_request_has_its_needs_or_is_open_to_everybody() -> None:
    assert KINDS.keys() == set(get_args(Handled)) - {WaitingFetch}
    is_open = {kind for kind, known in KINDS.items() if known.needs is None}
    assert is_open == {Version, Quit, Authenticate}
    assert {type(request) for request, _ in CASES} | is_open == set(get_args(Handled)) - {WaitingFetch}


def test_every_verb_against_every_set_of_rights() -> None:
    rights = list(Right)
    for bits, (request, enough) in product(range(1 << len(rights)), CASES):
        given = frozenset(right for number, right in enumerate(rights) if bits >> number & 1)
        assert may(principal(given), request) == any(each <= given for each in enough), (given, request)


def test_rights_over_another_name_do_not_help() -> None:
    for request, _ in CASES:
        if any(need.name is not None for need in needs_of(request)):
            assert not may(principal(frozenset(Right), "others"), request), request
        assert may(principal(frozenset(Right), "*"), request)


def test_what_is_about_all_branches_needs_a_right_over_all() -> None:
    for request in (
        TransactionCommand(None, "s", TransactionVerb.RECOVER, None, None, 1),
        BranchCommand(BranchVerb.LEDGER, None, "", "", 1),
    ):
        assert not may(principal(frozenset({D}), "mine*"), request)
        assert may(principal(frozenset({D}), "*"), request)
