"""docs/operations/metrics.md lists every metric, as the program describes it. Run, this file writes the list."""

import re
from pathlib import Path

from meta_broker.metrics.families import FAMILIES
from meta_client.admin.families import Family, Kind

PAGE = Path(__file__).parents[3] / "docs/operations/metrics.md"
TABLE = re.compile(r"(?<=test_names\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
UNITS = ("_seconds", "_bytes")


def table() -> str:
    return "\n".join(["", "| Name | Type | Meaning |", "|---|---|---|", *map(row, FAMILIES), "", ""])


def row(family: Family) -> str:
    labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
    return f"| `{family.name}{labels}` | {family.kind} | {family.help} |"


def test_the_page_has_every_name() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table()


def test_names_follow_the_conventions() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        name = family.name
        assert re.fullmatch(r"metaq_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind is Kind.COUNTER), name
        assert name.endswith("_info") == (family.kind is Kind.INFO), name
        if family.kind is Kind.HISTOGRAM:
            assert name.endswith(UNITS), name
        assert not re.search(r"_(ms|us|minutes|kb|mib|percent)(_|$)", name), name
        assert family.help.endswith("."), name


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda match: table(), PAGE.read_text()))
