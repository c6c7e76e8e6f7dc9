"""The share of branches that tests take, and each one that they don't, by a report of `coverage json`.

    python -m tests.branches REPORT

Ends with status 1 below SHARE_MIN, and if a file has more of them than docs/branches.md gives a reason for.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/branches.md"
SHARE_MIN = 0.95


def explained() -> dict[str, int]:
    """File -> how many of its branches the page has a reason for."""
    found: dict[str, int] = {}
    for path, number in re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE):
        found[path] = found.get(path, 0) + int(number)
    return found


def main(report: str) -> int:
    """Print what is missed; return the exit status."""
    told = json.loads(Path(report).read_text())
    reasons = explained()
    is_explained = True
    for path, file in sorted(told["files"].items()):
        missed = file["missing_branches"]
        lines = (ROOT / path).read_text().splitlines()
        if len(missed) <= reasons.get(path, 0):
            continue
        is_explained = False
        print(f"{path}: {len(missed)} not taken, {reasons.get(path, 0)} explained")
        for start, end in missed:
            print(f"  {start} -> {end if end > 0 else 'exit'}: {lines[start - 1].strip()}")
    taken, all_of_them = told["totals"]["covered_branches"], told["totals"]["num_branches"]
    print(f"branches: {taken} of {all_of_them}, {taken / all_of_them:.2%}")
    return int(taken < SHARE_MIN * all_of_them or not is_explained)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
