"""A slave's report on its copy, written and read."""

from dataclasses import replace

import pytest

from journal.records.epoch_history import EPOCH_HISTORY_MAX, WriterEpoch
from journal.records.header import Lsn
from meta_broker.replication.replica.copy_report import CopyReport, InvalidCopyReport, copy_lines, parse_copy

EPOCH_HISTORY = (WriterEpoch(1, 1, Lsn(128)), WriterEpoch(1, 2, Lsn(4096)), WriterEpoch(2, 1, Lsn(8192)))
REPORT = CopyReport(
    cluster="metaq",
    broker_id=0,
    slave_id=1,
    start=128,
    end=9000,
    flushed=8900,
    high_watermark=8800,
    is_complete=True,
    data="/var/lib/metaq/0-slave",
    epoch_history=EPOCH_HISTORY,
)
LINES = [
    "copy slave 1 broker 0 cluster metaq epoch 2 start 128 end 9000 flushed 8900 high_watermark 8800 complete true "
    "data /var/lib/metaq/0-slave",
    "life epoch 1 incarnation 1 lsn 128",
    "life epoch 1 incarnation 2 lsn 4096",
    "life epoch 2 incarnation 1 lsn 8192",
]


def answer(*lines: str) -> str:
    return "\r\n".join(["STATS", *lines, "END", ""])


def test_the_text_both_ways() -> None:
    assert list(copy_lines(REPORT)) == LINES
    assert parse_copy(answer(*LINES)) == REPORT


def test_a_new_slave_has_no_epoch() -> None:
    named = replace(REPORT, cluster="two words\n\u00e4", broker_id=7, slave_id=2, data="/a b/100%/\u00fc")
    new = replace(named, start=0, end=0, flushed=0, high_watermark=0, is_complete=False, epoch_history=())
    assert (parse_copy(answer(*copy_lines(new))), new.epoch) == (new, 0)


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert parse_copy(answer(LINES[0] + " more 1", "other line", "", *(f"{line} x" for line in LINES[1:]))) == REPORT


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "no slave, or of an older version"),
        (["no master"], "no slave, or of an older version"),
        (["master mode async epoch 1"], "no slave, or of an older version"),
        ([LINES[0].replace(" end 9000", "")], "does not tell 'end'"),
        ([LINES[0].replace("end 9000", "end -9")], "does not read: end '-9'"),
        ([LINES[0].replace("end 9000", "end " + "9" * 5000)], "does not read: end '999"),
        ([LINES[0], "life epoch 1 incarnation 1"], "does not tell 'lsn'"),
        ([LINES[0], LINES[2], LINES[1]], "not in order"),
        ([LINES[0], LINES[1], LINES[1]], "not in order"),
    ],
)
def test_what_can_not_be_read_says_why(lines: list[str], reason: str) -> None:
    with pytest.raises(InvalidCopyReport, match=reason):
        parse_copy(answer(*lines))


def test_no_text_is_too_long_to_be_read() -> None:
    many = [f"life epoch 1 incarnation {number} lsn {number}" for number in range(1, 3 * EPOCH_HISTORY_MAX)]
    found = parse_copy(answer(LINES[0], *many))
    assert len(found.epoch_history) == EPOCH_HISTORY_MAX
