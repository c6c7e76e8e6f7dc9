"""Segments that a read of a journal is spared, by what a checkpoint and the index files know: no message with them."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan

from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.state.live_branch import LiveBranch
from meta_broker.config.sections import RetentionSection
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import TransactionVerb
from spark_jobs.messages.batches import PartitionId
from spark_jobs.messages.journal import first_wanted, journals, plan_tasks, read_task
from spark_jobs.messages.selection import Condition, Selection
from spark_jobs.source.directory import plan_directory
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.thoroughness import examples
from tests.fixtures.wire import WireClient
from tests.meta_broker.store.test_retention import Stage, stage

COLUMNS = ("topic", "partition", "offset", "payload", "xid")
NAMES = [PartitionName(topic, number) for topic in ("orders", "stock") for number in (0, 1)]
LATE = PartitionName("late", 0)
SEGMENT_BYTES = 128 * 1024
Row = dict[str, Any]


def store_some(on: Stage, random: Random, open_branches: list[LiveBranch], number: int) -> None:
    """A message, or a step of a transaction, which may end many segments later."""
    transactions = on.store.transactions
    frame = encode_frame(number, 0, b"%d" % number * random.randrange(1, 60))
    name = random.choice(NAMES)
    step = random.random()
    if step < 0.7:
        on.publish_done(transactions.put(name, [frame], len(frame), 1))
    elif step < 0.9 or not open_branches:
        if step < 0.8 or not open_branches:
            open_branches.append(transactions.begin(XaKey(Xid.of(f"t-{number}", "b"), "uq")))
        transactions.transactional_put(random.choice(open_branches), name, [frame], len(frame), 1)
    else:
        branch = open_branches.pop(random.randrange(len(open_branches)))
        if random.random() < 0.3:
            transactions.rollback(branch)
        else:
            on.publish_done(transactions.commit(branch, one_phase=True))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Some forty segments, with checkpoints in between and messages behind the last."""
    path = tmp_path_factory.mktemp("first-wanted") / "broker"
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    random = Random(seed)

    async def story() -> None:
        open_branches: list[LiveBranch] = []
        async with stage(path, RetentionSection()) as on:
            for number in range(1200):
                store_some(on, random, open_branches, number)
                if number in (300, 900):
                    on.store.last_checkpoint()
            frame = encode_frame(1200, 0, b"late")
            on.publish_done(on.store.transactions.put(LATE, [frame], len(frame), 1))
        # No last checkpoint: a broker that was killed.

    asyncio.run(story())
    yield path
    shutil.rmtree(path)


def rows_of(path: Path, selection: Selection, *, is_spared: bool) -> tuple[int, list[Row]]:
    """The number of tasks, and their rows."""
    (planned,) = journals([str(path)])
    every = [planned.task(planned.slices[: index + 1]) for index in range(len(planned.slices))]
    tasks = plan_tasks([str(path)], selection) if is_spared else every
    rows = [
        row
        for task in tasks
        for batch in read_task(task, selection, COLUMNS, fail_on_data_loss=True)
        for row in batch.to_pylist()
    ]
    return len(tasks), rows


def chosen(random: Random, offsets: dict[PartitionId, list[int]]) -> Selection:
    """Any of the ways to ask for less."""
    some = random.sample(sorted(offsets), random.randint(1, len(offsets)))
    selection = Selection(topics=frozenset(topic for topic, _ in some) if random.random() < 0.5 else None)
    if random.random() < 0.6:
        selection.starts = {each: random.choice(offsets[each]) for each in some}
    for condition in (
        Condition("offset", GreaterThan, (random.choice(offsets[some[0]]),)),
        Condition("offset", LessThan, (random.choice(offsets[some[0]]),)),
        Condition("partition", In, tuple({partition for _, partition in some})),
        Condition("topic", EqualTo, (some[0][0],)),
    ):
        if random.random() < 0.3:
            selection.conditions.append(condition)
    return selection


@pytest.fixture(scope="module")
def offsets(journal: Path) -> dict[PartitionId, list[int]]:
    found: dict[PartitionId, list[int]] = {}
    for row in rows_of(journal, Selection(), is_spared=False)[1]:
        found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return found


def test_what_is_spared_holds_nothing_that_is_wanted(journal: Path, offsets: dict[PartitionId, list[int]]) -> None:
    for _ in range(examples(40)):
        seed = int.from_bytes(os.urandom(4))
        selection = chosen(Random(seed), offsets)
        every, wanted = rows_of(journal, selection, is_spared=False)
        some, found = rows_of(journal, selection, is_spared=True)
        assert found == wanted, f"seed {seed}"
        assert some <= every


def test_every_message_is_published_in_a_segment_that_is_read(journal: Path) -> None:
    (planned,) = journals([str(journal)])
    count = 0
    for index, each in enumerate(planned.slices):
        task = planned.task(planned.slices[: index + 1])
        for batch in read_task(task, Selection(), COLUMNS, fail_on_data_loss=True):
            for row in batch.to_pylist():
                only = Condition("partition", EqualTo, (row["partition"],))
                place = {(row["topic"], row["partition"]): row["offset"]}
                selection = Selection(frozenset([row["topic"]]), starts=place, conditions=[only])
                assert first_wanted(journal, 0, planned.slices, selection) < each.end, row
                count += 1
    assert count > 500


def test_the_end_of_a_partition_is_read_without_the_beginning_of_the_journal(journal: Path) -> None:
    every, rows = rows_of(journal, Selection(), is_spared=False)
    last = {(row["topic"], row["partition"]): row["offset"] for row in rows if row["topic"] != LATE.topic}
    some, found = rows_of(
        journal, Selection(starts=last, topics=frozenset(name.topic for name in NAMES)), is_spared=True
    )
    assert len(found) == len(last)
    assert 0 < some < every / 2
    late, found = rows_of(journal, Selection(topics=frozenset([LATE.topic])), is_spared=True)
    assert [row["payload"] for row in found] == [b"late"]
    assert 0 < late < every / 2, "the checkpoint knows nothing of it"


def test_what_is_not_known_spares_nothing(journal: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(journal, copy)
    slices = plan_directory(copy)
    late = Selection(topics=frozenset([LATE.topic]))
    orders = Selection(topics=frozenset(["orders"]), starts={("orders", "0-0"): 3000, ("orders", "0-1"): 3000})
    assert first_wanted(copy, 0, slices, late) > 0
    assert first_wanted(copy, 0, slices, orders) > 0
    for file in (copy / "index").iterdir():
        content = bytearray(file.read_bytes())
        content[8] ^= 1
        file.write_bytes(content)
    assert first_wanted(copy, 0, slices, orders) == 0
    assert first_wanted(copy, 0, slices, late) > 0
    for file in copy.glob("checkpoint.*"):
        file.write_bytes(b"damaged")
    assert first_wanted(copy, 0, slices, late) == 0


def test_messages_since_a_time_are_read_without_the_segments_before(tmp_path: Path) -> None:
    """A transaction that is put early and committed late is one of its time, and stands in a segment of the other."""
    config = CONFIG.replace("segment_bytes = 4194304", f"segment_bytes = {SEGMENT_BYTES}\nmessage_bytes_max = 65536")
    broker = BrokerProcess(tmp_path / "broker", None, config=config)
    key = XaKey(Xid.of("early", "b"), "uq")
    try:
        broker.start()
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.BEGIN, key)
            client.put("orders", 0, b"early", key)
            client.verb(TransactionVerb.PREPARE, key)
            for number in range(200):
                client.put("orders", 1, b"%d" % number * 5000)
                if number == 150:
                    client.verb(TransactionVerb.COMMIT_TWO_PHASE, key)
    finally:
        broker.kill()
    (planned,) = journals([str(broker.data)])
    since: list[int] = []
    for index, each in enumerate(planned.slices):
        task = planned.task(planned.slices[: index + 1])
        for batch in read_task(task, Selection(), ("offset", "timestamp"), fail_on_data_loss=True):
            for us in batch.column(1).cast(pa.int64()).to_pylist():
                since.append(us)
                assert first_wanted(broker.data, 0, planned.slices, Selection(start_us=us)) < each.end
    assert len(since) == 201
    assert len(planned.slices) > 20
    every = rows_of(broker.data, Selection(start_us=since[-20]), is_spared=False)
    some = rows_of(broker.data, Selection(start_us=since[-20]), is_spared=True)
    assert some[1] == every[1]
    assert 0 < some[0] < every[0] / 2
