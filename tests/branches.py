"""The share of the product's branches that the tests take, and those they don't, by a report of `coverage json`.

    python -m tests.branches REPORT

Exit status 1 below SHARE_MIN. A branch that no test can take has `# pragma: no branch` with the reason in its line.
"""

import json
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SHARE_MIN: Final = 0.95


def main(report: str) -> int:
    """Print each branch not taken with its line, then the share; return the exit status."""
    told = json.loads(Path(report).read_text())
    for path, file in sorted(told["files"].items()):
        lines = (ROOT / path).read_text().splitlines()
        for start, end in file["missing_branches"]:
            print(f"{path}:{start} to {end if end > 0 else 'exit'}: {lines[start - 1].strip()}")
    taken, known = told["totals"]["covered_branches"], told["totals"]["num_branches"]
    print(f"{taken} of {known} branches, {taken / known:.2%}")
    return int(taken < SHARE_MIN * known)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
