"""Full view of what a broker shows, compared with what is expected."""

from typing import NamedTuple

from journal.records.xid import BranchKey
from tests.crash.decisions import Decided, read_listed
from tests.crash.ledger import Log
from tests.crash.workload import PARTITIONS, Connect


class Shown(NamedTuple):
    """Messages, branches in doubt, and decisions of operators that nobody forgot."""

    log: Log
    in_doubt: set[BranchKey]
    decided: Decided


def read_shown(connect: Connect) -> Shown:
    """Messages, in offsets without gap or overlap, and what RECOVER lists."""
    with connect() as client:
        return Shown({name: client.read_all(*name) for name in PARTITIONS}, *read_listed(client))


def check_shown(shown: Shown, expected: Shown) -> None:
    """Just that, and nothing else."""
    for name, messages in expected.log.items():
        ours = shown.log[name]
        at = next((n for n, pair in enumerate(zip(ours, messages, strict=False)) if pair[0] != pair[1]), None)
        assert at is None, f"{name}: message {at} is another"
        assert len(ours) == len(messages), f"{name}: {len(ours)} messages, and {len(messages)} are left"
    assert shown.in_doubt == expected.in_doubt, f"in doubt: {shown.in_doubt}, and {expected.in_doubt} are left"
    assert shown.decided == expected.decided, f"decided: {shown.decided}, and {expected.decided} are left"
