"""Reading as a group member for the command line: the group continues exactly after the last shown message."""

import dataclasses
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from meta_client.cli.output import refuse_away
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.consumer.position import Position
from meta_client.consumer.watchdog import Cure
from meta_client.operations.placement import away_brokers
from meta_client.operations.waiting import Waiting, has_zookeeper
from zk.tree.nodes import Partition, TopicPartition

LOOK_S: Final = 0.2  # interval of checks for the end
STILL_S: Final = 10.0  # wait for the whole share, and for messages
CONFIG: Final = ConsumerConfig(watchdog_s=STILL_S)

ShowMessage = Callable[[ReceivedMessage], None]


class ShownOffsets:
    """A ZooKeeper OffsetStore that stores shown messages only, as a batch may be shown in part."""

    def __init__(self, client: Client, group: str) -> None:
        self._store = ZooKeeperOffsetStore(client.session, group)
        self._shown: dict[tuple[str, Partition], OffsetEntry] = {}  # written by runners, each for its partitions
        self._stored: dict[tuple[str, Partition], OffsetEntry] = {}  # of `_shown`

    def load(self, topic: str, partition: Partition) -> int | None:
        self._shown.pop((topic, partition), None)  # of an ownership that is over
        return self._store.load(topic, partition)

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        shown = [(e, entry) for e in entries if (entry := self._shown.get((e.topic, e.partition))) is not None]
        self._store.commit([entry._replace(claimed=e.claimed, is_reset=e.is_reset) for e, entry in shown])
        self._stored |= {(entry.topic, entry.partition): entry for _, entry in shown}

    def not_stored(self) -> list[str]:
        """Return the partitions of which messages were shown that are not known to be stored as consumed."""
        return ["{}/{}".format(*key) for key, it in sorted(self._shown.items()) if self._stored.get(key) is not it]

    def mark_shown(self, message: ReceivedMessage) -> None:
        key = message.topic, message.partition
        self._shown[key] = OffsetEntry(*key, message.next_offset, message.message_id)


class GroupReading:
    """Reads as a group member until *count* messages are shown, or, unless it follows, all existing ones."""

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        start: Position,
        show: ShowMessage,
        count: int | None,
        waiting: Waiting,
    ) -> None:
        self._client = client
        self._waiting = waiting
        self._offsets = ShownOffsets(client, group)
        self._show = show
        self._left = count
        self._lock = threading.Lock()  # serialises output of runners and of the command
        self._owned: list[TopicPartition] = []
        self._moved_at = time.monotonic()  # a message was shown, or the partitions changed
        self._is_done = threading.Event()
        self._failure: BaseException | None = None
        self._consumer = client.consumer(group, self._offsets, config=dataclasses.replace(CONFIG, start=start))
        self._consumer.subscribe(topic, self._on_batch)
        self._incomplete = (
            f"this member has not got its whole share of {topic} in {STILL_S:g} s: the log says why, and "
            f"`metaq groups describe {shlex.quote(group)}` who owns the rest"
        )

    def run(self, *, follow: bool) -> None:
        """Read until the end. Raises the output's errors, such as BrokenPipeError, ZooKeeperError; ClickException if
        partitions of this member are left out, or cannot be read, a known broker is away, or it is unknown whether what
        was shown is stored as consumed."""
        with self._consumer:
            while not self._is_done.is_set():
                with self._lock:
                    if self._consumer.owned() and has_zookeeper(self._client):
                        self._waiting.update(is_offered=True, is_reading=True)
                    else:
                        self._waiting.poll(self._client)
                if not follow and self._consumer.is_caught_up():
                    break
                if not follow and (stuck := self._find_stuck()):
                    raise click.ClickException(f"incomplete: {stuck}")
                self._is_done.wait(LOOK_S)
        if self._failure is not None:
            raise self._failure
        if lost := ", ".join(self._offsets.not_stored()):
            raise click.ClickException(
                f"not known to be stored: the group may get again what was shown of {lost}; the log says why"
            )
        if not self._is_done.is_set():
            refuse_away(away_brokers(self._client))

    def _find_stuck(self) -> str:
        """Return what is wrong with this member's share, blank for nothing. It does not count while messages are shown,
        partitions come and go, or ZooKeeper is away, since it may be over; nor, without a partition, what others hold,
        who may let go."""
        if (owned := self._consumer.owned()) != self._owned or not has_zookeeper(self._client):
            self._owned, self._moved_at = owned, time.monotonic()
        if time.monotonic() - self._moved_at < CONFIG.watchdog_s:
            return ""
        findings = self._consumer.findings()
        mine = [one for one in findings if one.key in owned or one.cure not in (Cure.NONE, Cure.CALL)]
        if not mine and owned and not self._consumer.has_whole_share():
            return self._incomplete
        return "; ".join("{}/{} {}".format(*finding.key, finding.text) for finding in sorted(mine))

    def _on_batch(self, batch: Batch) -> None:
        with self._lock:
            self._waiting.update(is_offered=True, is_reading=True)
            try:
                for message in batch.messages:
                    if self._is_done.is_set():
                        return
                    self._show(message)
                    self._moved_at = time.monotonic()
                    self._offsets.mark_shown(message)
                    if self._left is not None:
                        self._left -= 1
                    if self._left == 0:
                        self._is_done.set()
            except OSError as error:  # the output was closed; run() raises it on its thread
                self._failure = error
                self._is_done.set()
