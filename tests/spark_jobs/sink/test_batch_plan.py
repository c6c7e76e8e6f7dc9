"""The digest of a batch's plan, from wherever a checkpoint may be. Starts no Spark."""

from pathlib import Path

import pytest
import s3fs

from meta_client.batches.decision import SinkFailed
from meta_client.batches.names import BatchName
from spark_jobs.sink.batch_plan import plan_digest
from tests.fixtures.s3_server import S3Server

QUERY = "66b04f9c-cfb4-4cd0-b1d7-7b37e586c0da"
SEVENTH = BatchName(QUERY, 7)
PLAN = 'v1\n{"batchTimestampMs":1}\n{"logOffset":3}'


def make_checkpoint(place: Path) -> Path:
    (place / "offsets").mkdir(parents=True)
    (place / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    (place / "offsets" / "7").write_text(PLAN)
    return place


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "of a query")


def test_a_plan_is_told_from_others(checkpoint: Path) -> None:
    before = plan_digest(str(checkpoint), SEVENTH)
    (checkpoint / "offsets" / "7").write_text(PLAN.replace("3", "4"))
    assert plan_digest(str(checkpoint), SEVENTH) != before


@pytest.mark.parametrize(
    ("given", "directory"),
    [
        ("{}/trailing/", "trailing"),
        ("file:{}/a b", "a b"),
        ("file:{}/a%20b", "a%20b"),
        ("file://{}/a%2520b/", "a%2520b"),
        ("FILE:{}/large", "large"),
        ("file:{}/tag#1?x=2;y", "tag#1?x=2;y"),
        ("{}/tag#1", "tag#1"),
        ("{}/ünï:cödé", "ünï:cödé"),
        ("{}//twice", "twice"),
        ("{}/absent/../up", "up"),
        ("{}/link/../beside-the-link", "beside-the-link"),
        ("relative", "relative"),
        ("./absent/../relative", "relative"),
    ],
)
def test_a_location_means_what_it_means_to_spark(
    given: str, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair is what Spark 4.3 did: Hadoop unescapes nothing, and takes `..` by the text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    here = plan_digest(str(make_checkpoint(tmp_path / directory)), SEVENTH)
    assert plan_digest(given.format(tmp_path), SEVENTH) == here


def test_what_can_t_be_read_is_no_plan(checkpoint: Path) -> None:
    for place, batch, name in ((checkpoint, 8, "offsets/8"), (checkpoint / "else", 7, "metadata")):
        with pytest.raises(SinkFailed, match=f"there is no {name} in checkpointLocation .*give the directory"):
            plan_digest(str(place), BatchName(QUERY, batch))
    (checkpoint / "offsets" / "9").mkdir()
    with pytest.raises(SinkFailed, match=r"the plan of batch 9 can't be read: .*Is a directory"):
        plan_digest(str(checkpoint), BatchName(QUERY, 9))
    with pytest.raises(SinkFailed, match="the plan of batch 7 can't be read: "):
        plan_digest("nowhere://bucket/checkpoint", SEVENTH)
    with pytest.raises(SinkFailed, match=r"can't be read: .*: name it by option checkpointUrl") as refused:
        plan_digest("hdfs://127.0.0.1:1/checkpoint", SEVENTH)
    assert len(str(refused.value).splitlines()) == 1


def test_another_query_s_checkpoint_is_no_plan(checkpoint: Path) -> None:
    """Refuse another query's location, as of a path without its scheme, which means something else to Spark."""
    with pytest.raises(SinkFailed, match=f"is of query {QUERY}, .* and the batch of query other: give the location"):
        plan_digest(str(checkpoint), BatchName("other", 7))
    for damaged in (b"", b"\xff", b"[]", b"{}"):
        (checkpoint / "metadata").write_bytes(damaged)
        with pytest.raises(SinkFailed, match="metadata names no query"):
            plan_digest(str(checkpoint), SEVENTH)


def test_a_checkpoint_in_an_object_store(s3: S3Server) -> None:
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir("plans")
    files.pipe_file("plans/a%20query/metadata", b'{"id":"%s"}' % QUERY.encode())
    files.pipe_file("plans/a%20query/offsets/7", PLAN.encode())
    found = {plan_digest(f"{place}/a%20query", SEVENTH) for place in ("s3://plans", "s3a://plans/x/..")}
    assert len(found) == 1
    with pytest.raises(SinkFailed, match=r"there is no metadata in checkpointLocation s3://plans: give"):
        plan_digest("s3://plans", SEVENTH)
