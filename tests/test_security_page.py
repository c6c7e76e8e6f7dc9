"""SECURITY.md names tests that exist: each threat has one at least."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent / "SECURITY.md").read_text()
THREATS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Threat")]
# A test's file, or `..` and the name of one that was named before; the name of a test of it, or of the last file.
NAMED = re.compile(r"`(?P<dots>\.\.)?(?P<file>[\w/]*\.py|[\w/]+/)?(?:::(?P<test>test_\w+))?`")


def test_each_threat_has_tests_that_exist() -> None:
    last, missing, without = HERE, [], []
    before: dict[str, Path] = {}
    for threat in THREATS:
        column = threat.rstrip("| ").rpartition(" | ")[2]
        named = [match for match in NAMED.finditer(column) if match["file"] or match["test"]]
        if not named and column != "the same":
            without.append(threat)
        for match in named:
            if match["file"]:
                last = before.get(match["file"], HERE) if match["dots"] else HERE / match["file"]
                before[last.name] = last
            is_there = last.exists() and (match["test"] is None or f"def {match['test']}(" in last.read_text())
            if not is_there:
                missing.append((threat.split("|")[1].strip(), match[0], str(last)))
    assert len(THREATS) > 30
    assert not missing
    assert not without
