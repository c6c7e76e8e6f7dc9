"""The share of the product's branches that the tests take, and those they don't, by a report of `coverage json`.

    python -m tests.branches REPORT

Exit status 1 below SHARE_MIN. Branches not taken are listed by REASONS, and at last those that only lack a test. One
that no test can take by its very form is a pattern in pyproject.toml, or has `# pragma: no branch` with the reason in
its line.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SHARE_MIN: Final = 0.95
UNTESTED: Final = "no test takes it yet"
# The first whose pattern is found in a branch's line of the list. None is for what a test could take.
REASONS: Final = (
    (r" to (exit|\d+): case ", "mypy proves that the last case of a match fits, or another one is not asked for"),
    (r"^meta_client/aio/", "greenlets: perhaps taken, and not counted"),
    (r"^meta_broker/demo/", "processes that the demo kills: perhaps taken, and not counted"),
    (r"^spark_jobs/(messages|source|sink)/", "Spark's Python workers: perhaps taken, and not counted"),
    (
        r"byteorder|AF_INET6|find_spec|sys\.modules|server_user|\"autocommit\"|isatty|EINVAL|meta_broker/selftest/",
        "another machine, user or version",
    ),
    (r"elif error is not None:|elif not isinstance\(error, StorageFailed\):", "a mistake of metaq's own, for its log"),
    (r"# .*meanwhile|\.exchange\(|write_(replication|position)\(|RefusalReason", "of two at once the other was first"),
    (r" to exit: (el)?if self\._(transport|timer|limit|redelivery|thread\.is_alive)\b", "closed twice"),
)


def main(report: str) -> int:
    """Print each branch not taken, with its line, below its reason; then the share; return the exit status."""
    told = json.loads(Path(report).read_text())
    left: dict[str, list[str]] = defaultdict(list)
    for path, file in sorted(told["files"].items()):
        lines = (ROOT / path).read_text().splitlines()
        for start, end in file["missing_branches"]:
            text = f"{path}:{start} to {end if end > 0 else 'exit'}: {lines[start - 1].strip()}"
            left[next((reason for pattern, reason in REASONS if re.search(pattern, text)), UNTESTED)].append(text)
    for reason in [*(reason for _, reason in REASONS), UNTESTED]:
        if found := left.pop(reason, []):
            print(f"{len(found)}: {reason}", *found, sep="\n  ")
    taken, known = told["totals"]["covered_branches"], told["totals"]["num_branches"]
    print(f"{taken} of {known} branches, {taken / known:.2%}")
    return int(taken < SHARE_MIN * known)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
