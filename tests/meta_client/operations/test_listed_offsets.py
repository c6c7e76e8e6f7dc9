"""Offsets and places as operators give them: in a file, and on the command line."""

from pathlib import Path

import pytest

from meta_client.operations.listed_offsets import BadList, read_listed
from meta_client.operations.option_types import parse_end
from meta_client.operations.reset_options import parse_member_rule
from zk.tree.nodes import Partition

GOOD = '{"topic":"orders","partition":"0-1","offset":7}\n'


def test_before_a_reset_counts_more_than_now(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_text(GOOD + '{"topic":"stock","partition":"1-0","offset":9,"before":null,"more":1}\n')
    assert read_listed(path) == {("orders", Partition(0, 1)): 7, ("stock", Partition(1, 0)): None}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"topic":"orders","partition":"0-1"}', "it needs topic, partition, and before or offset"),
        ('{"topic":"orders","partition":"one","offset":7}', "it needs topic, partition, and before or offset"),
        ('{"topic":"orders","offset":7}', "missing required field `partition`"),
        ('{"topic":"orders","partition":"0-1","offset":-1}', "-1 is no offset"),
        ('{"topic":"orders","partition":"0-1","offset":9223372036854775808}', "is no offset"),
        ("orders 0-1 7", "malformed"),
        ('{"topic":' + "[" * 100_000, ""),
    ],
)
def test_a_line_that_is_not_from_a_listing_is_named(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(BadList, match=f"line 2 is not what .*{why}"):
        read_listed(path)


@pytest.mark.parametrize("text", ["9223372036854775808", "1" * 20, "tomorrow", "-1"])
def test_an_end_is_an_offset_or_a_time(text: str) -> None:
    assert parse_end("9223372036854775807") == 2**63 - 1
    with pytest.raises(ValueError, match=f"{text} is neither an offset"):
        parse_end(text)


def test_members_leave_by_force_in_time_or_not_at_all() -> None:
    assert [parse_member_rule(text) for text in ("refuse", "force", "wait:30")] == [0.0, "force", 30.0]
    for text in ("wait", "wait:soon"):
        with pytest.raises(ValueError, match=f"{text}|soon"):
            parse_member_rule(text)
