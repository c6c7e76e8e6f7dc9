"""docs/operations/metrics.md lists every metric, as the program describes it. Run, this file writes the list."""

import re
from collections.abc import Iterable
from pathlib import Path

from meta_broker.metrics.families import FAMILIES as BROKER
from meta_client.admin.families import Family, MetricKind
from meta_client.admin.log_samples import FAMILIES as LOG
from meta_client.coordinator.metrics import FAMILIES as COORDINATOR
from meta_client.metrics import FAMILIES as CONSUMERS
from meta_client.operations.group_watch import FAMILIES as GROUPS
from meta_client.outbox.relay_metrics import FAMILIES as RELAY
from meta_client.transactions.resolver_metrics import FAMILIES as RESOLVER

PAGE = Path(__file__).parents[3] / "docs/operations/metrics.md"
TABLE = re.compile(r"<!-- begin (\w+) -->\n(.*?)(?=<!-- end -->)", re.DOTALL)
TABLES = {
    "broker": BROKER,
    "resolver": RESOLVER,
    "relay": RELAY,
    "coordinator": COORDINATOR,
    "consumers": CONSUMERS,
    "groups": GROUPS,
    "log": LOG,
}
UNITS = ("_seconds", "_bytes")


def table(families: Iterable[Family]) -> str:
    return "\n".join(["", "| Name | Type | Meaning |", "|---|---|---|", *map(row, families), "", ""])


def row(family: Family) -> str:
    labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
    return f"| `{family.name}{labels}` | {family.kind} | {family.help} |"


def test_the_page_has_every_name() -> None:
    found = dict(TABLE.findall(PAGE.read_text()))
    assert found == {name: table(families) for name, families in TABLES.items()}


def test_names_follow_the_conventions() -> None:
    families = [family for table in TABLES.values() for family in table]
    assert len({family.name for family in families}) == len(families)
    for family in families:
        name = family.name
        assert re.fullmatch(r"metaq_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind is MetricKind.COUNTER), name
        assert name.endswith("_info") == (family.kind is MetricKind.INFO), name
        if family.kind is MetricKind.HISTOGRAM:
            assert name.endswith(UNITS), name
        assert not re.search(r"_(ms|us|minutes|kb|mib|percent)(_|$)", name), name
        assert family.help.endswith("."), name


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda found: f"<!-- begin {found[1]} -->\n{table(TABLES[found[1]])}", PAGE.read_text()))
