"""`stats replication` of a slave: the extent of its copy, in lines of `key value`, written and parsed. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from journal.records.epoch_history import EPOCH_HISTORY_MAX, WriterEpoch
from journal.records.header import Lsn

_DIGITS_MAX = 19  # what an LSN, a 64-bit number, can have
_TEXT_MAX = 4096


class InvalidCopyReport(Exception):
    """The lines are no report of a copy; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """A slave's copy: LSNs [start, end), fsynced below *flushed*, acknowledged by its master below *high_watermark*.

    *epoch_history*: oldest first; none: it is empty. *is_complete* False: the initial sync from a checkpoint is not
    finished, and it cannot be promoted. *data*: its directory, on its machine.
    """

    cluster: str
    broker_id: int
    slave_id: int
    start: int
    end: int
    flushed: int
    high_watermark: int
    is_complete: bool
    data: str
    epoch_history: tuple[WriterEpoch, ...]

    @property
    def epoch(self) -> int:
        """Epoch of the newest record; 0: there is none."""
        return self.epoch_history[-1].epoch if self.epoch_history else 0


def copy_lines(report: CopyReport) -> Iterator[str]:
    """Yield the line of the copy, then one line an epoch. Texts are percent-encoded: no value contains a blank."""
    yield (
        f"copy slave {report.slave_id} broker {report.broker_id} cluster {quote(report.cluster, safe='')} "
        f"epoch {report.epoch} start {report.start} end {report.end} flushed {report.flushed} "
        f"high_watermark {report.high_watermark} complete {'true' if report.is_complete else 'false'} "
        f"data {quote(report.data)}"
    )
    for epoch in report.epoch_history:
        yield f"life epoch {epoch.epoch} incarnation {epoch.incarnation} lsn {epoch.lsn}"


def parse_copy(text: str) -> CopyReport:
    """Parse what `copy_lines` wrote. Unknown lines and keys are ignored. Raises InvalidCopyReport."""
    copy: Mapping[str, str] = {}
    epoch_history: list[WriterEpoch] = []
    try:
        for line in text.splitlines():
            kind, *pairs = line.split() or [""]
            fields = dict(zip(pairs[::2], pairs[1::2], strict=False))
            if kind == "copy":
                copy = fields
            elif kind == "life" and len(epoch_history) < EPOCH_HISTORY_MAX:
                epoch_history.append(
                    WriterEpoch(_number(fields, "epoch"), _number(fields, "incarnation"), Lsn(_number(fields, "lsn")))
                )
        if not copy:
            raise InvalidCopyReport("it does not tell how far its copy goes: it is no slave, or of an older version")
        if epoch_history != sorted(set(epoch_history)):
            raise InvalidCopyReport("the epochs of its journal are not in order")
        return CopyReport(
            cluster=unquote(copy["cluster"][:_TEXT_MAX]),
            broker_id=_number(copy, "broker"),
            slave_id=_number(copy, "slave"),
            start=_number(copy, "start"),
            end=_number(copy, "end"),
            flushed=_number(copy, "flushed"),
            high_watermark=_number(copy, "high_watermark"),
            is_complete=copy["complete"] == "true",
            data=unquote(copy["data"][:_TEXT_MAX]),
            epoch_history=tuple(epoch_history),
        )
    except KeyError as error:
        raise InvalidCopyReport(f"it does not tell {error.args[0]!r} of its copy") from error
    except ValueError as error:
        raise InvalidCopyReport(f"what it tells of its copy does not read: {error}") from error


def _number(fields: Mapping[str, str], key: str) -> int:
    word = fields[key]
    if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX):
        raise ValueError(f"{key} {word[:_DIGITS_MAX]!r}")
    return int(word)
