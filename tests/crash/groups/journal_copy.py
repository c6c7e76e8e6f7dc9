"""Journals of brokers, kept whole though retention deletes from them: the truth of what was stored."""

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.kept import Kept, walk
from tests.fixtures.broker import BrokerProcess
from zk.tree.nodes import Partition

LOOK_S = 0.05  # a segment lives far longer


class Stored(NamedTuple):
    """A message of a journal."""

    offset: int
    next_offset: int
    number: int


class JournalCopies:
    """Gives each segment a second name as soon as it appears. Use as a context manager while the brokers run."""

    def __init__(self, brokers: Sequence[BrokerProcess], directory: Path) -> None:
        self._brokers = brokers
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def stored(self) -> dict[str, list[Stored]]:
        """Every message ever stored, by partition, in order. Once the brokers have ended."""
        found: dict[str, list[Stored]] = {}
        for broker in self._brokers:
            kept = Kept(walk(self._of(broker)))
            for name, messages in kept.log.items():
                ends = [*(offset for offset, _ in messages[1:]), kept.ends[name]]
                found[str(Partition(broker.broker_id, name.partition))] = [
                    Stored(offset, end, int(message.payload.split()[0]))
                    for (offset, message), end in zip(messages, ends, strict=True)
                ]
        return found

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for broker in self._brokers:
            for segment in broker.data.glob("*.journal"):
                with contextlib.suppress(FileNotFoundError):  # deleted just now
                    kept = self._of(broker) / segment.name
                    if kept.exists() and kept.samefile(segment):
                        continue
                    link = kept.with_suffix(".link")
                    os.link(segment, link)
                    link.replace(kept)  # a start may have written the last one anew

    def _of(self, broker: BrokerProcess) -> Path:
        return self._directory / str(broker.broker_id)

    def __enter__(self) -> "JournalCopies":
        for broker in self._brokers:
            self._of(broker).mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
