"""`spark.readStream.format("metaq")` with `from = journal`: micro-batches of messages, from the directories of brokers.

Spark keeps a position of each broker's journal in the query's checkpoint: a batch has the messages that records between
two positions publish. The driver finds how far a journal may be read; a task reads one segment. No broker is asked.
"""

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes

from spark_jobs.messages.journal import JournalTask, PlannedJournal, journals
from spark_jobs.messages.journal_positions import (
    BEGAN,
    StreamPosition,
    StreamPositions,
    as_json,
    began_in,
    boundary_from,
    check_position,
    first_position,
    from_json,
    position_at,
    readable_end,
    tasks_between,
)
from spark_jobs.messages.options import LATEST, InvalidOption, ReadOptions
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.stream import LimitedStream, limited
from spark_jobs.messages.stream import as_json as offsets_as_json
from spark_jobs.source.directory import LSN_MAX

_log = logging.getLogger(__name__)


class JournalStream(LimitedStream):
    """Messages from directories."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        if not isinstance(options.start, str) and LSN_MAX in options.start.values():
            raise InvalidOption('option "startingOffsets" of a journal can\'t be -1 for one partition: give its offset')
        super().__init__(options, columns)
        self._seen: StreamPositions = {}
        self._last: dict[int, int] | None = None  # where the query ends, with Trigger.AvailableNow

    def initialOffset(self) -> StreamPositions:  # noqa: N802 - the API's name
        """Return where a new query begins. Raises StorageFailed, ForeignJournal."""
        start, start_ms = self._options.start, self._options.start_ms
        is_latest = start == LATEST and start_ms is None
        positions = {
            broker: self._end_position(each, each.slices[0].base) if is_latest else first_position(each)
            for broker, each in self._journals().items()
        }
        offsets = {} if isinstance(start, str) else offsets_as_json(start)
        return as_json(positions) | {BEGAN: {"offsets": offsets, "ms": start_ms}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the API's name
        """Fix where the query will end. Raises StorageFailed, ForeignJournal."""
        self._last = {broker: readable_end(each, each.slices[0].base) for broker, each in self._journals().items()}

    def latestOffset(self, start: StreamPositions, limit: ReadLimit) -> StreamPositions:  # noqa: N802 - the API's name
        """Return where a batch from *start* ends. A broker without a journal stays where it is.

        Raises DataLost for a journal that is not the one that was read, StorageFailed, ForeignJournal.
        """
        begins, found = from_json(start), self._journals()
        for broker, each in found.items():
            begins.setdefault(broker, first_position(each))  # a new broker: all of it
            begins[broker] = self._begin(each, begins[broker])
        ends = {broker: readable_end(each, begins[broker].lsn) for broker, each in found.items()}
        for broker, end in ends.items():
            if end == begins[broker].lsn:
                self._check_end(found[broker], end)
        kept = {BEGAN: start[BEGAN]} if BEGAN in start else {}
        self._seen = as_json({broker: position_at(found[broker], end) for broker, end in ends.items()}) | kept
        if self._last is not None:
            ends = {broker: min(end, self._last.get(broker, begins[broker].lsn)) for broker, end in ends.items()}
        if isinstance(limit, ReadMaxBytes):
            firsts = {broker: begins[broker].lsn for broker in found}
            wanted = limited(firsts, {broker: max(ends[broker], at) for broker, at in firsts.items()}, limit.max_bytes)
            ends = {
                broker: boundary_from(found[broker], begins[broker].lsn, wanted[broker], end)
                if wanted[broker] < end
                else end
                for broker, end in ends.items()
            }
        is_more = {broker for broker, end in ends.items() if end > begins[broker].lsn}
        return as_json(begins | {broker: position_at(found[broker], ends[broker]) for broker in is_more}) | kept

    def reportLatestOffset(self) -> StreamPositions | None:  # noqa: N802 - the API's name
        """Return the ends that were last seen: with a batch's own end they are the lag, in bytes of journal."""
        return self._seen or None

    def partitions(self, start: StreamPositions, end: StreamPositions) -> list[InputPartition]:
        """Return the tasks of a batch. Raises DataLost, StorageFailed, ForeignJournal."""
        begins, ends, found = from_json(start), from_json(end), self._journals()
        tasks: list[InputPartition] = []
        for broker, until in sorted(ends.items()):
            begin = begins.get(broker, StreamPosition(0))
            if until.lsn <= begin.lsn:
                continue
            if (each := found.get(broker)) is None:
                self._report(
                    DataLost(f"broker {broker}, which the checkpoint names, has no journal in any path: name it")
                )
                continue
            begin = self._begin(each, begin) if broker in begins else first_position(each)
            tasks += tasks_between(each, begin.lsn, self._begin(each, until).lsn, began_in(start))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, JournalTask) and partition.began is not None:
            self._options.selection.limit(partition.began.offsets, LATEST, partition.began.ms, None)
        return super().read(partition)

    def _journals(self) -> dict[int, PlannedJournal]:
        return {each.broker_id: each for each in journals(self._options.paths)}

    def _end_position(self, journal: PlannedJournal, begin: int) -> StreamPosition:
        return position_at(journal, readable_end(journal, begin))

    def _begin(self, journal: PlannedJournal, position: StreamPosition) -> StreamPosition:
        """Return *position*, or what is left of it with failOnDataLoss=false. Raises DataLost."""
        try:
            check_position(journal, position)
        except DataLost as error:
            self._report(error)
            begin = journal.slices[0].base  # beyond what is there, the next records are new
            return position_at(journal, min(max(position.lsn, begin), readable_end(journal, begin)))
        return position

    def _check_end(self, journal: PlannedJournal, end: int) -> None:
        """Raise DataLost if the last segment has damage behind *end*, which no task will meet."""
        for one in journal.slices[-1].unreadable:
            if one.end > end:
                where = f"{journal.place}: LSNs {one.lsn} to {one.end} of the journal"
                self._report(DataLost(f"{where} do not read back: {one.reason}"))

    def _report(self, error: DataLost) -> None:
        if self._options.fails_on_data_loss:
            raise error
        _log.warning("messages left out %s", error)
