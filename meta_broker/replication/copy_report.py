"""`stats replication` of a slave: how far its copy goes, in lines of `key value`. Written and read here. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from journal.frame import Lsn
from journal.lives import LIVES_MAX, Life

_DIGITS_MAX = 19  # what an LSN, a 64-bit number, can have
_TEXT_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """A slave's copy. LSNs [start, end), fsynced below *flushed*; below *fence*, its master said, all is acknowledged.

    *lives*: who wrote it, oldest first; none: it has nothing yet. Not *is_complete*: it is still being made, from a
    checkpoint, and can't be promoted. *data*: its directory, on its machine.
    """

    cluster: str
    broker_id: int
    slave_id: int
    start: int
    end: int
    flushed: int
    fence: int
    is_complete: bool
    data: str
    lives: tuple[Life, ...]

    @property
    def epoch(self) -> int:
        """Of its newest record; 0: there is none."""
        return self.lives[-1].epoch if self.lives else 0


def copy_lines(report: CopyReport) -> Iterator[str]:
    """The copy, then each life. Texts are percent-encoded: a value has no blank."""
    yield (
        f"copy slave {report.slave_id} broker {report.broker_id} cluster {quote(report.cluster, safe='')} "
        f"epoch {report.epoch} start {report.start} end {report.end} flushed {report.flushed} fence {report.fence} "
        f"complete {'true' if report.is_complete else 'false'} data {quote(report.data)}"
    )
    for life in report.lives:
        yield f"life epoch {life.epoch} incarnation {life.incarnation} lsn {life.lsn}"


def parse_copy(text: str) -> CopyReport | str:
    """Read what `copy_lines` wrote; a text: why it can't be. What this version does not know is passed over."""
    copy: Mapping[str, str] = {}
    lives: list[Life] = []
    try:
        for line in text.splitlines():
            kind, *pairs = line.split() or [""]
            said = dict(zip(pairs[::2], pairs[1::2], strict=False))
            if kind == "copy":
                copy = said
            elif kind == "life" and len(lives) < LIVES_MAX:
                lives.append(Life(_number(said, "epoch"), _number(said, "incarnation"), Lsn(_number(said, "lsn"))))
        if not copy:
            return "it does not tell how far its copy goes: it is no slave, or of an older version"
        if lives != sorted(set(lives)):
            return "the lives of its journal are not in order"
        return CopyReport(
            cluster=unquote(copy["cluster"][:_TEXT_MAX]),
            broker_id=_number(copy, "broker"),
            slave_id=_number(copy, "slave"),
            start=_number(copy, "start"),
            end=_number(copy, "end"),
            flushed=_number(copy, "flushed"),
            fence=_number(copy, "fence"),
            is_complete=copy["complete"] == "true",
            data=unquote(copy["data"][:_TEXT_MAX]),
            lives=tuple(lives),
        )
    except KeyError as error:
        return f"it does not tell {error.args[0]!r} of its copy"
    except ValueError as error:
        return f"what it tells of its copy does not read: {error}"


def _number(said: Mapping[str, str], key: str) -> int:
    word = said[key]
    if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX):
        raise ValueError(f"{key} {word[:_DIGITS_MAX]!r}")
    return int(word)
