"""A certificate of a real PostgreSQL and real brokers: an honest run, then every lie by hand, each in its class."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from journal.records.codec import decode
from journal.records.record import Commit
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import read_header, segment_name
from journal.wal.storage import DirectoryStorage
from spark_jobs.certificate.database import Marker
from spark_jobs.certificate.join import JoinRequest
from spark_jobs.certificate.statement import agrees, make_certificate
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import World, make_postgres, running_world
from tests.spark_jobs.journals import records_of, segment_bases

SOLD, SENT = Marker.parse("sold.gtrid"), Marker.parse("public.sent.id")


def certified(
    spark: SparkSession, world: World, *directories: Path, markers: tuple[Marker, ...], offsets: str | None = None
) -> dict[str, Any]:
    return make_certificate(spark, JoinRequest(directories, world.deciding.url, markers, 0, offsets))


def counts(body: dict[str, Any]) -> dict[str, int]:
    return {name: one["transactions"] for name, one in body["classes"].items() if one["transactions"]}


def sell(world: World, number: int, *topics: str, fails: bool = False) -> str:
    """A transaction with a row that names it, messages, and a row for the id of each; returns its gtrid."""
    gtrid = ""
    with closing(psycopg.connect(world.deciding.url)) as connection:
        try:
            with world.client.transaction(connection, wait=True) as transaction:
                handles = [transaction.send(topic, str(number).encode()) for topic in topics]
                gtrid = transaction.gtrid
                connection.execute("INSERT INTO sold VALUES (%s, %s)", (number, gtrid))
                for handle in handles:
                    connection.execute("INSERT INTO sent VALUES (%s)", (handle.result().message_id,))
                if fails:
                    raise InterruptedError
        except InterruptedError:
            pass
    return gtrid


@pytest.fixture
def world(broker_pool: BrokerPool, database: Database) -> Iterator[World]:
    with running_world(make_postgres(database), broker_pool, brokers=2) as world:
        world.deciding.execute("CREATE TABLE sold (number int, gtrid text)")
        world.deciding.execute("CREATE TABLE sent (id bigint)")
        yield world


def cut_before_commit(path: Path, gtrid: str) -> None:
    """Remove the transaction's COMMIT, and what came after it, as a torn tail would be."""
    (lsn,) = [
        one.header.lsn
        for one in records_of(path)
        if isinstance(record := decode(one.header, one.meta), Commit) and gtrid.encode().hex() in str(record.key)
    ]
    base = max(base for base in segment_bases(path) if base <= lsn)
    with (path / segment_name(base)).open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(lsn - base)
        file.write(bytes(size - (lsn - base)))
    for later in path.glob("checkpoint.*"):
        later.unlink()


def roll_back(path: Path) -> None:
    """Have the store itself roll back what is in doubt there, with a record of its own."""
    storage = DirectoryStorage.open_for_writing(path)
    first = storage.open(segment_name(0), writable=False)
    header = read_header(first, "")
    first.close()
    store = JournalTransactionStore.open(
        storage, header.identity, JournalConfig(segment_bytes=header.size), version="test"
    )
    (branch,) = store.recover()
    assert isinstance(branch, LiveBranch)
    store.rollback(branch)
    store.close()
    storage.close()


def test_an_honest_run_and_every_lie(world: World, spark: SparkSession, tmp_path: Path) -> None:
    sold = [sell(world, number, "orders", *(["bills"] if number % 2 else [])) for number in range(7)]
    sell(world, 7, "bills", fails=True)
    world.wait_quiet()
    directories = [broker.data for broker in world.brokers]

    # Live, and honest: nothing came apart, and everything adds up. A transaction that commits while the journals are
    # read is no orphan.
    during: list[str] = []

    def commits(line: str) -> None:
        if "segments" in line and not during:
            during.append(sell(world, 8, "bills"))

    request = JoinRequest(tuple(directories), world.deciding.url, (SOLD, SENT), 0)
    body = make_certificate(spark, request, commits)
    assert counts(body) == {"committed": 8, "rolled back": 1}, json.dumps(body, indent=1)
    assert (len(during), body["refused"], body["apart"], body["consumers"]) == (1, [], {}, [])
    assert body["classes"]["committed"] == {"transactions": 8, "branches": 11, "messages": 11, "rows": 8 + 11}
    assert body["sentence"] == "Of 9 transactions none came apart: 8 committed in both, 1 rolled back in both."
    assert [broker["broker"] for broker in body["brokers"]] == [0, 1]
    place = next(iter(world.client.browse("orders"))).partition
    world.deciding.execute(
        'CREATE TABLE seen (group_id text, topic text, partition text, "offset" bigint);'
        f"INSERT INTO seen VALUES ('at', 'orders', '{place}', 0), ('ahead', 'orders', '{place}', 1000000),"
        " ('elsewhere', 'orders', '9-0', 0)"
    )
    unmarked = certified(spark, world, *directories, markers=(), offsets="seen")
    assert {one["group"]: one["state"] for one in unmarked["consumers"]} == {
        "at": "within",
        "ahead": "beyond the end",
        "elsewhere": "unknown: no record of the partition",
    }
    assert counts(unmarked) == {"rolled back": 1, "unknown": 8}, "their decision rows are gone"
    assert (
        unmarked["sentence"]
        == "Of 9 transactions none is known to have come apart: 0 committed in both, 1 rolled back in both, 8 unknown."
    )
    assert agrees(body)
    assert not agrees(unmarked)

    # One lie a transaction, made by hand in the database and in a copy of broker 0's directory.
    copied = shutil.copytree(directories[0], tmp_path / "forged")
    cut_before_commit(copied, sold[6])
    in_doubt = shutil.copytree(copied, tmp_path / "in-doubt")
    roll_back(copied)
    invented = f"{sold[0][:-6]}AAAAAA"
    world.deciding.execute(
        "DELETE FROM sold WHERE number = 0;"
        "INSERT INTO sold SELECT * FROM sold WHERE number = 1;"
        f"INSERT INTO sold VALUES (99, '{invented}');"
        "INSERT INTO sold VALUES (100, 'another system''s')"
    )
    body = certified(spark, world, copied, directories[1], markers=(SOLD,))
    apart = {"orphan": 1, "duplicate": 1, "missing": 1, "mixed": 1}
    assert counts(body) == {"committed": 5, "rolled back": 1, **apart}, json.dumps(body, indent=1)
    assert body["apart"] == apart
    assert body["refused"] == [], "it says what came apart, and its counts add up"
    named = {name: [one["transaction"] for one in found] for name, found in body["examples"].items() if found}
    assert named == {"orphan": [sold[0]], "duplicate": [sold[1]], "missing": [invented], "mixed": [sold[6]]}
    assert body["sentence"].startswith("Of 10 transactions 4 CAME APART: 1 mixed, 1 orphan, 1 missing, 1 duplicate; ")

    # What is left out as too old, by the clocks of brokers, is told.
    request = JoinRequest((copied, directories[1]), world.deciding.url, (SOLD,), 4_000_000_000_000)
    body = make_certificate(spark, request)
    assert (counts(body), body["apart"]) == ({"missing": 1}, {"missing": 1}), (
        "of a row without a branch nobody knows when"
    )
    assert (
        "9 transactions are older by their brokers' clocks, and left out: 1 mixed, 1 orphan, 1 duplicate"
        in body["not_proven"]
    )

    # Not forged, only cut: in doubt.
    body = certified(spark, world, in_doubt, directories[1], markers=(SOLD,))
    assert counts(body) == {"committed": 5, "rolled back": 1, "in doubt": 1, "orphan": 1, "duplicate": 1, "missing": 1}
    assert body["refused"] == []
