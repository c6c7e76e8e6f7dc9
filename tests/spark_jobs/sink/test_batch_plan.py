"""The digest of a batch's plan, from wherever a checkpoint may be. Starts no Spark."""

from pathlib import Path

import pytest
import s3fs

from meta_client.batches.decision import SinkFailed
from spark_jobs.sink.batch_plan import plan_digest
from tests.fixtures.s3_server import S3Server


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    place = tmp_path / "of a query"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "7").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":3}')
    return place


def test_a_plan_is_told_from_others(checkpoint: Path) -> None:
    before = plan_digest(str(checkpoint), 7)
    assert plan_digest(checkpoint.as_uri(), 7) == before
    assert plan_digest(f"file:{str(checkpoint).replace(' ', '%20')}", 7) == before
    (checkpoint / "offsets" / "7").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":4}')
    assert plan_digest(str(checkpoint), 7) != before


def test_what_can_t_be_read_is_no_plan(checkpoint: Path) -> None:
    for place, batch in ((checkpoint, 8), (checkpoint / "else", 7)):
        with pytest.raises(SinkFailed, match=f"there is no offsets/{batch} in checkpointLocation .*give the directory"):
            plan_digest(str(place), batch)
    (checkpoint / "offsets" / "9").mkdir()
    with pytest.raises(SinkFailed, match=r"the plan of batch 9 can't be read: .*Is a directory"):
        plan_digest(str(checkpoint), 9)
    with pytest.raises(SinkFailed, match="the plan of batch 7 can't be read: "):
        plan_digest("nowhere://bucket/checkpoint", 7)


def test_a_checkpoint_in_an_object_store(s3: S3Server) -> None:
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir("plans")
    files.pipe_file("plans/query/offsets/7", b"plan")
    assert plan_digest("s3://plans/query", 7) == plan_digest("s3a://plans/query", 7)
