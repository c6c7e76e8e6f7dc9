"""Topics a broker accepts: exact names and wildcards, and the bounded cost of unknown names (spec 4.2, V07)."""

import pytest

from meta_broker.config.broker_config import TopicConfig
from meta_broker.store.topics import Topics

EXACT, LONG, SHORT, ANY = (TopicConfig(partitions=n) for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("TBCTU-", True),
        ("TBCTU-x", True),
        ("TBCTU-x-y", True),
        ("a-TBCTU-", False),
        ("TBCTU", False),
        ("tbctu-", False),
    ],
)
def test_a_wildcard_matches_the_whole_name(name: str, accepted: bool) -> None:
    assert (Topics({"TBCTU-*": ANY}).find(name) is ANY) is accepted


def test_an_exact_name_wins_then_the_longest_pattern() -> None:
    topics = Topics({"*": ANY, "orders-*": SHORT, "orders-eu-*": LONG, "orders-eu-1": EXACT})
    assert topics.find("orders-eu-1") is EXACT
    assert topics.find("orders-eu-2") is LONG
    assert topics.find("orders-us") is SHORT
    assert topics.find("stock") is ANY
    assert topics.find("*") is ANY  # spec 6.4: a section `*` is a topic of that name, too
    assert topics.find("orders-*") is SHORT


def test_everything_but_the_star_is_literal() -> None:
    topics = Topics({"a.b": EXACT, "[x]*+": LONG})
    assert topics.find("a.b") is EXACT
    assert topics.find("axb") is None
    assert topics.find("[x]anything+") is LONG
    assert topics.find("xx+") is None
    assert Topics({"a*b*c": ANY}).find("a-b-b-c") is ANY


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\tb", "a\x00b", "é" * 101, "x" * 201, "\ufffd", "😀"])
def test_no_wildcard_accepts_what_can_be_no_topic(name: str) -> None:
    assert Topics({"*": ANY}).find(name) is None


def test_a_strangers_names_are_not_remembered_without_end() -> None:
    topics = Topics({"*": ANY})
    for number in range(30_000):
        topics.find(f"made-up-{number}")
        topics.find("x" * 1000 + str(number))
    remembered = topics._found
    assert len(remembered) <= 10_000
    assert max(map(len, remembered)) <= 200
