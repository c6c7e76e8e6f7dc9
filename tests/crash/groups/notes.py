"""Lines that a member writes about what it is handed and does: `tests.crash.groups.ledger` reads them.

One write a line, so that a kill loses none. Times are of a clock that all processes share and that goes on while one is
stopped.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from meta_client.consumer.traffic import PartitionLag
from zk.session.lease import now
from zk.tree.nodes import Partition, TopicPartition


class Notes(logging.Handler):
    """The file of one member. Any thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handed(self, partition: Partition, offset: int, next_offset: int, epoch: int, numbers: list[int]) -> None:
        """Messages are handed over."""
        self._write("B", partition, offset, next_offset, epoch, ",".join(map(str, numbers)))

    def done(self, partition: Partition, next_offset: int) -> None:
        """The listener is done with what it was handed last of *partition*."""
        self._write("E", partition, next_offset)

    def failed(self, partition: Partition, offset: int, reason: str) -> None:
        """It is about to raise; *offset*: of the first message."""
        self._write("X", partition, offset, reason)

    def redelivered(self, partition: Partition, offset: int) -> None:
        """It is done with a dead letter."""
        self._write("R", partition, offset)

    def filtered(self, partition: Partition, offset: int, next_offset: int) -> None:
        """A message is not wanted, and counts as consumed."""
        self._write("F", partition, offset, next_offset)

    def sought(self, partition: Partition, offset: int) -> None:
        """A seek is about to begin."""
        self._write("K", partition, offset)

    def lags(self, lags: Mapping[TopicPartition, PartitionLag], at: float) -> None:
        """Note the lag that the consumer told at *at*."""
        told = (f"{partition}:{it.bytes}:{it.seconds}" for (_, partition), it in lags.items())
        self._write("L", at, *told)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what the client logs of moved offsets, and of lost sessions."""
        if str(record.msg).startswith("offset moved") and isinstance(record.args, tuple):
            _, _, partition, before, offset, _ = record.args
            self._write("M", partition, before, offset)
        elif str(record.msg).startswith("session lost"):
            self._write("S", "session-lost")

    def _write(self, *words: object) -> None:
        kind, *rest = words
        os.write(self._file, f"{kind} {now()} {' '.join(map(str, rest))}\n".encode())
