"""Retention deletes a segment between planning and reading, as in a job of an hour."""

from pathlib import Path

import pytest

from journal.errors import StorageFailed
from journal.wal.segments import segment_name
from spark_jobs.messages.journal import JournalTask, plan_tasks, read_task
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.selection import Selection
from tests.spark_jobs.journals import segment_bases


def offsets(tasks: list[JournalTask], *, fails: bool) -> list[tuple[str, str, int]]:
    return [
        tuple(row.values())
        for task in tasks
        for batch in read_task(task, Selection(), ("topic", "partition", "offset"), fail_on_data_loss=fails)
        for row in batch.to_pylist()
    ]


def test_a_read_that_may_lack_messages_goes_on_without_them(honest: Path) -> None:
    tasks = plan_tasks([str(honest)], Selection())
    whole = offsets(tasks, fails=True)
    for base in segment_bases(honest)[:2]:
        (honest / segment_name(base)).unlink()
    with pytest.raises(DataLost, match=r"retention has deleted it.*failOnDataLoss=false"):
        offsets(tasks, fails=True)
    left = offsets(tasks, fails=False)
    assert 0 < len(left) < len(whole)
    assert [row for row in whole if row in left] == left


def test_a_directory_that_is_not_there_is_no_retention(honest: Path) -> None:
    """A worker that has not mounted it."""
    tasks = plan_tasks([str(honest)], Selection())
    honest.rename(honest.with_name("elsewhere"))
    with pytest.raises(StorageFailed, match="not a directory: name the data"):
        offsets(tasks, fails=False)
