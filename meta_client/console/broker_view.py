"""Brokers of a cluster as pages show them: what ZooKeeper, each master and each slave said. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from meta_client.console.reads import Unknown
from meta_client.operations.broker_rows import NO_WRITES, ReplicationReport, absence, number, parse_report, rows_of
from zk.brokers.cluster import BrokerEntry
from zk.brokers.replication import ReplicationNode
from zk.tree.broker_url import BrokerUrl

DISK_LOW: Final = 0.1  # of a disk's size
LAG_S_HIGH: Final = 10.0
ITEMS: Final = ("", "replication", "journal")  # of `stats`, asked of every broker
Fields = Mapping[str, str]
NOT_REGISTERED: Final = Unknown(
    "not registered in ZooKeeper, so its address is unknown: it is starting, or serves no reads (register in [slave])"
)


class Told(NamedTuple):
    """Answers of one broker process to `stats`, by item."""

    broker: Fields
    replication: ReplicationReport
    journal: "JournalFacts | None"  # None: it does not know the item, as older and genuine brokers


@dataclass(slots=True)
class JournalFacts:
    """`stats journal`. Missing fields are unknown."""

    journal: Fields = field(default_factory=dict)
    checkpoints: Fields = field(default_factory=dict)
    disk: Fields = field(default_factory=dict)
    retention: Fields = field(default_factory=dict)
    checkpoint_files: list[tuple[int, Fields]] = field(default_factory=list)
    segments: list[tuple[int, Fields]] = field(default_factory=list)

    @property
    def disk_free(self) -> float | None:
        free, size = number(self.disk.get("free_bytes")), number(self.disk.get("size_bytes"))
        return None if free is None or not size else free / size

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest record that is left: the retention horizon."""
        return number(self.segments[0][1].get("first_ms")) if self.segments else None


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker id: ZooKeeper's nodes, and what its processes said."""

    broker_id: int
    entry: BrokerEntry
    node: ReplicationNode | None
    master: Told | Unknown | None = None  # None: it is away
    slaves: Mapping[int, Told | Unknown] = field(default_factory=dict)

    def answered(self, said: Mapping[BrokerUrl, Told | Unknown]) -> "BrokerView":
        """Return the view with what each process *said*; slaves that only the master or the in-sync set names are
        unknown."""
        master = None if self.entry.master is None else said[self.entry.master]
        named = {*master.replication.slaves} if isinstance(master, Told) else set()
        named |= {*self.node.in_sync} if self.node is not None else set()
        slaves: dict[int, Told | Unknown] = dict.fromkeys(named, NOT_REGISTERED)
        slaves |= {slave_id: said[url] for slave_id, url in self.entry.slaves.items()}
        return replace(self, master=master, slaves=dict(sorted(slaves.items())))

    @property
    def rows(self) -> list[dict[str, Any]]:
        report = self.master.replication if isinstance(self.master, Told) else None
        return list(rows_of(self.broker_id, self.entry, report, self.node))


class Alert(NamedTuple):
    """Something that an operator should look at. *level*: bad, warn or unknown."""

    level: str
    what: str
    path: str  # of the page that says more


def parse_told(texts: Mapping[str, str]) -> Told:
    """Read a broker's answers to ITEMS; accepts any text."""
    lines = [line.split(" ", 1) for line in texts[""].splitlines()]
    broker = {line[0]: line[1] for line in lines if len(line) == 2}
    return Told(broker, parse_report(texts["replication"]), parse_journal(texts["journal"]))


def parse_journal(text: str) -> JournalFacts | None:
    """Read `stats journal`; None if these are not its lines."""
    facts = JournalFacts()
    known = False
    for line in text.splitlines():
        match line.split():
            case ["journal" | "checkpoints" | "disk" | "retention" as kind, *pairs] if pairs:
                known = True
                setattr(facts, kind, dict(zip(pairs[::2], pairs[1::2], strict=False)))
            case ["checkpoint" | "segment" as kind, name, *pairs] if (found := number(name)) is not None:
                rows = facts.checkpoint_files if kind == "checkpoint" else facts.segments
                rows.append((found, dict(zip(pairs[::2], pairs[1::2], strict=False))))
    return facts if known else None


def alerts_of(view: BrokerView) -> Iterator[Alert]:
    """Yield what is wrong, or unknown, about one broker id."""
    name = f"broker {view.broker_id}"
    if view.entry.master is None:
        yield Alert("bad", absence(view.broker_id, view.entry, view.node), "/replication")
    elif isinstance(view.master, Unknown):
        yield Alert("unknown", f"{name}: {view.master.why}", "/replication")
    for row in view.rows:
        yield from _row_alerts(name, row)
    told: list[tuple[str, Told | Unknown | None]] = [(name, view.master)]
    told += [(f"{name}, slave {slave_id}", said) for slave_id, said in view.slaves.items()]
    for who, said in told:
        if isinstance(said, Told):
            yield from _process_alerts(who, said)
        elif said is not None and said is not view.master and said is not NOT_REGISTERED:  # that may be on purpose
            yield Alert("unknown", f"{who}: {said.why}", "/replication")


def _row_alerts(name: str, row: Mapping[str, Any]) -> Iterator[Alert]:
    state = row["state"]
    if row["role"] == "master":
        if state == "degraded":
            yield Alert("warn", f"{name}: degraded: no slave is waited for, an answer is durable on it alone", "/")
        elif state in NO_WRITES - {"away", "silent", "full"}:  # of a full disk its process tells
            yield Alert("bad", f"{name} refuses writes: its in-sync set is too small", "/replication")
        return
    who = f"{name}, {row['role']}"
    if state != "follows":
        yield Alert("bad" if row["in_sync"] else "warn", f"{who}: {state}", "/replication")
    elif row["lag_s"] is not None and row["lag_s"] > LAG_S_HIGH:
        yield Alert("warn", f"{who} is {row['lag_s']:.0f} s behind", "/replication")


def _process_alerts(who: str, told: Told) -> Iterator[Alert]:
    for key, text in (
        ("unreadable_ranges", "places of its journal can't be read"),
        ("indexes_rebuilding", "partition indexes are damaged and not rebuilt yet"),
    ):
        if count := number(told.broker.get(key)):
            yield Alert("bad", f"{who}: {count} {text}", "/journal")
    if told.journal is None:
        yield Alert("unknown", f"{who}: disk and journal: it does not know `stats journal`", "/journal")
        return
    if told.journal.disk.get("refuses_writes") == "true":
        yield Alert("bad", f"{who}: its disk is full: new messages are refused", "/journal")
    elif (free := told.journal.disk_free) is None:
        yield Alert("unknown", f"{who}: it can't tell the room on its disk", "/journal")
    elif free < DISK_LOW:
        yield Alert("warn", f"{who}: {free:.0%} of its disk are free", "/journal")
