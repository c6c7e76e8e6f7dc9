"""The options of format `metaq`, named as those of Spark's Kafka source. Pure.

Unknown names, and those that do not go together, are refused with the nearest right one: an option that is silently
ignored is a wrong result.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from meta_client.net.security import Credentials, Security
from meta_client.net.tls import TlsConfig
from spark_jobs.messages.batches import PartitionId
from spark_jobs.messages.selection import Selection
from spark_jobs.source.directory import LSN_MAX
from zk.tree.nodes import Partition

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
Places = Literal["earliest", "latest"] | Mapping[PartitionId, int]
_NUMBERS: Final = {-2: 0, -1: LSN_MAX}  # of single partitions, as Spark's Kafka source has them
_READ: Final = (
    *("from", "path", "paths", "zookeeper", "root", "brokers", "subscribe", "subscribePattern", "startingOffsets"),
    *("endingOffsets", "startingTimestamp", "endingTimestamp", "minPartitions", "maxOffsetsPerTrigger"),
    *("failOnDataLoss", "includeHeaders", "pushFilters"),
)
SECURITY: Final = ("tls", "tlsCa", "tlsCertificate", "tlsKey", "user", "passwordFile")  # files on every worker
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_IGNORED: Final = frozenset({"checkpointlocation", "serialization.format"})  # Spark's own, which it hands on


class InvalidOption(ValueError):
    """An option that format `metaq` does not have, or a value that it does not take."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster: *zookeeper* with *root*, or addresses of all its masters; how to connect safely to its brokers."""

    zookeeper: str | None
    root: str = "/meta"
    addresses: tuple[str, ...] = ()
    tls: TlsConfig | None = None
    user: str | None = None
    password_file: str = ""

    @property
    def security(self) -> Security:
        """Read the files, here on the driver or there on a worker. Raises InvalidSecurity."""
        credentials = None if self.user is None else Credentials.load(self.user, self.password_file)
        return Security(self.tls, credentials).check()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    paths: tuple[str, ...]
    cluster: ClusterAddress | None
    selection: Selection
    start: Places
    end: Places
    start_ms: int | None
    end_ms: int | None
    partitions_min: int
    offsets_max: int | None  # of a trigger, in bytes
    fails_on_data_loss: bool
    pushes_filters: bool


class Given:
    """Options as they were given. Every method raises InvalidOption."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...], purpose: str) -> None:
        """*names*: of all options there are."""
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in names}
        for name in sorted(self._values.keys() - known.keys() - _IGNORED):
            near = get_close_matches(name, known, 1, 0.5)
            advice = f"did you mean {known[near[0]]}?" if near else f"it has {', '.join(sorted(names))}"
            raise InvalidOption(f"format metaq has no option {name[:80]!r} for {purpose}: {advice}")

    def get(self, name: str) -> str | None:
        """Return a text; None without one."""
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidOption(f'option "{name}" is empty: give it a value, or leave it out')
        return value

    def number(self, name: str, least: int = 0) -> int | None:
        """Return a whole number of *least* or more."""
        if (text := self.get(name)) is None:
            return None
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= LSN_MAX:
            raise InvalidOption(f'option "{name}" is {text[:80]!r}: give a whole number from {least} on')
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.get(name)
        if text is not None and text.lower() not in ("true", "false"):
            raise InvalidOption(f'option "{name}" is {text[:80]!r}: use true or false')
        return default if text is None else text.lower() == "true"

    def places(self, name: str, default: str) -> Places:
        """Return earliest, latest, or offsets by partition."""
        text = self.get(name) or default
        match text.lower():
            case ("earliest" | "latest") as end:
                return end
        example = '{"orders": {"0-0": 1024, "0-1": -2}}'
        try:
            return _places_by_partition(json.loads(text))
        except (ValueError, RecursionError) as error:
            reason = f'option "{name}" is {text[:80]!r}: use earliest, latest, or offsets as in {example}'
            raise InvalidOption(f"{reason} ({error})") from error

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if self.get(name) is not None:
                raise InvalidOption(f'option "{name}" {why}')


def _places_by_partition(read: Any) -> Mapping[PartitionId, int]:
    found: dict[PartitionId, int] = {}
    if not isinstance(read, dict) or not all(isinstance(each, dict) for each in read.values()):
        raise ValueError("it is no object of objects")
    for topic, offsets in read.items():
        for partition, offset in offsets.items():
            if Partition.maybe_parse(partition) is None:
                raise ValueError(f"{partition[:40]!r} is no partition: partitions are named broker-number")
            if type(offset) is not int or not -2 <= offset <= LSN_MAX:
                raise ValueError(f"{offset!r} is no offset")
            found[topic, partition] = _NUMBERS.get(offset, offset)
    return found


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Read the options of a query. Raises InvalidOption."""
    given = Given(options, (*_READ, *SECURITY), "reading")
    if is_stream:
        given.refuse(_BATCH_ONLY, "is for batch queries: a stream has no end")
        given.refuse(("pushFilters",), "is for batch queries: Spark pushes no filter down to a stream")
    else:
        given.refuse(_STREAM_ONLY, "is for streams: a batch query is one batch")
    is_journal = _is_journal(given)
    if is_journal:
        given.refuse(("zookeeper", "root", "brokers", *SECURITY), 'is for from=brokers: a journal is named by "path"')
        given.refuse(("minPartitions",), "is for from=brokers: a journal is read by one task a segment")
    else:
        given.refuse(("path", "paths"), "is for from=journal")
    paths = _paths(given) if is_journal else ()
    start = given.places("startingOffsets", LATEST if is_stream else EARLIEST)
    if start == LATEST and not is_stream:
        raise InvalidOption('option "startingOffsets" is latest: a batch query from there on has no messages')
    end = given.places("endingOffsets", LATEST)
    if end == EARLIEST:
        raise InvalidOption('option "endingOffsets" is earliest: a query up to there has no messages')
    start_ms, end_ms = given.number("startingTimestamp"), given.number("endingTimestamp")
    for name, by_time in (("startingOffsets", start_ms), ("endingOffsets", end_ms)):
        if by_time is not None and given.get(name) is not None:
            raise InvalidOption(f'options "{name}" and "{name.replace("Offsets", "Timestamp")}" exclude each other')
    selection = Selection(*_topics(given, is_journal=is_journal))
    given.flag("includeHeaders", default=False)  # the schema has taken it, unchecked
    return ReadOptions(
        paths,
        None if is_journal else cluster_of(given),
        selection,
        start,
        end,
        start_ms,
        end_ms,
        given.number("minPartitions", 1) or 1,
        given.number("maxOffsetsPerTrigger", 1),
        given.flag("failOnDataLoss", default=True),
        given.flag("pushFilters", default=False),
    )


def _is_journal(given: Given) -> bool:
    text = given.get("from")
    if text is None:
        if given.get("path") or given.get("paths"):
            return True
        if given.get("zookeeper") or given.get("brokers"):
            return False
        raise InvalidOption(
            'format metaq needs option "path" (a journal), "zookeeper" or "brokers"; Spark hands on none that a table '
            "was created with: query it FROM table WITH (...), or CREATE TEMPORARY VIEW ... USING metaq OPTIONS (...)"
        )
    if text.lower() not in ("journal", "brokers"):
        raise InvalidOption(f'option "from" is {text[:80]!r}: use journal or brokers')
    return text.lower() == "journal"


def _paths(given: Given) -> tuple[str, ...]:
    many = given.get("paths")  # what load([...]) gives
    found = json.loads(many) if many is not None else [path] if (path := given.get("path")) is not None else []
    if not found:
        raise InvalidOption('from=journal needs option "path": the data directory of a broker, or a folder of such')
    return tuple(map(str, found))


def cluster_of(given: Given) -> ClusterAddress:
    """Return the cluster that is named. Raises InvalidOption."""
    zookeeper, brokers = given.get("zookeeper"), given.get("brokers")
    if (zookeeper is None) == (brokers is None):
        raise InvalidOption('from=brokers needs option "zookeeper" or option "brokers", as host:port,...: one of them')
    if brokers is not None:
        given.refuse(("root",), "is for a cluster named by its ZooKeeper")
        return ClusterAddress(None, "", tuple(each.strip() for each in brokers.split(",")), *_security(given))
    return ClusterAddress(zookeeper, given.get("root") or "/meta", (), *_security(given))


def _security(given: Given) -> tuple[TlsConfig | None, str | None, str]:
    ca, certificate, key = (given.get(name) for name in ("tlsCa", "tlsCertificate", "tlsKey"))
    has_files = (ca, certificate, key) != (None, None, None)
    is_wanted = given.flag("tls", default=has_files)
    if has_files and not is_wanted:
        raise InvalidOption('option "tls" is false, and its files are named: leave one out')
    user, password_file = given.get("user"), given.get("passwordFile")
    if (user is None) != (password_file is None):
        raise InvalidOption('options "user" and "passwordFile" go together')
    return TlsConfig(ca=ca, certificate=certificate, key=key) if is_wanted else None, user, password_file or ""


def _topics(given: Given, *, is_journal: bool) -> tuple[frozenset[str] | None, str]:
    names, pattern = given.get("subscribe"), given.get("subscribePattern")
    if names is not None and pattern is not None:
        raise InvalidOption('options "subscribe" and "subscribePattern" exclude each other')
    if names is not None:
        topics = frozenset(each.strip() for each in names.split(","))
        if "" in topics:
            raise InvalidOption(f'option "subscribe" is {names[:80]!r}: a topic between its commas is blank')
        return topics, ".*"
    if pattern is None and not is_journal:
        raise InvalidOption('from=brokers needs option "subscribe", topics with commas between, or "subscribePattern"')
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption(f'option "subscribePattern" is {pattern[:80]!r}: {error}') from error
    return None, pattern or ".*"
