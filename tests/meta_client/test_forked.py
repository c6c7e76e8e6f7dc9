"""A process that forks, as servers of web applications do: what its child inherits speaks to nobody."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from meta_client.client import Client
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from zk.embedded.chroot import Chroot

# The child tries everything, leaves every block, and ends as an interpreter does; the parent goes on meanwhile.
THREADS = """
import json, os, sys
import psycopg
from meta_client import Client
from meta_client.coordinator import Coordinator
from zk.forks import CreatedBeforeFork

zookeeper, dsn, directory = sys.argv[1:]
read, write = os.pipe()


def child():
    refused = {}
    for name, use in {
        "client.producer": lambda: client.producer(),
        "client.browse": lambda: client.browse("orders"),
        "client.session.children": lambda: session.children("/meta"),
        "connection": lambda: connection.outstanding,
        "topology": lambda: topology.view("orders", 1),
        "producer.send": lambda: producer.send("orders", b"child"),
        "producer.send_async": lambda: producer.send_async("orders", b"child"),
        "producer.transaction": lambda: producer.transaction(),
        "producer.flush": lambda: producer.flush(1),
        "working.send": lambda: working.send("orders", b"child"),
        "working.tpc_rollback": lambda: working.tpc_rollback(),
        "consumer.close": lambda: consumer.close(),
        "consumer.fetch": lambda: consumer.fetch(1, 1),
        "coordinator.recover": lambda: coordinator.recover([], []),
        "coordinator.transaction": lambda: coordinator.transaction(database, producer, topics=("orders",)),
        "reply.wait": lambda: reply.wait(1),
        "transaction": lambda: transaction.__exit__(None, None, None),
    }.items():
        try:
            use()
        except CreatedBeforeFork as error:
            refused[name] = str(error)
        except BaseException as error:
            refused[name] = f"{type(error).__name__}: {error}"
        else:
            refused[name] = ""
    with Client(zookeeper) as its_own:
        its_own.producer("child").send("orders", b"from the child")
    os.write(write, json.dumps(refused).encode())


from meta_client.net.opaques import next_opaque
from meta_client.protocol.requests import Version

with Client(zookeeper) as client, Coordinator.open(directory, "shop") as coordinator:
    producer, working = client.producer("shop"), client.producer("shop")
    session, topology = client.session, client.topology
    consumer = client.consumer("readers")
    consumer.subscribe("orders")
    producer.send("orders", b"before")
    (connection,) = [slot.connection for slot in client.connections._slots.values()]
    database = psycopg.connect(dsn)
    transaction = coordinator.transaction(database, working, topics=("orders",))
    with transaction:
        database.execute("INSERT INTO placed VALUES (1)")
        working.send("orders", b"in the block")
        reply = connection.submit(Version(next_opaque()))
        if (pid := os.fork()) == 0:
            child()
            sys.exit(0)  # through every block, which is the parent's to end
        reply.wait(60)
        sent = [producer.send("orders", b"parent %d" % number) for number in range(50)]
        _, status = os.waitpid(pid, 0)
        sent += [producer.send("orders", b"parent %d" % number) for number in range(50, 100)]
        working.send("orders", b"in the block, too")
    client.session.children("/meta")
    database.close()
    print(json.dumps([os.waitstatus_to_exitcode(status), json.loads(os.read(read, 65536))]))
"""

TASKS = """
import asyncio, json, os, sys
from zk.forks import CreatedBeforeFork
import psycopg
from meta_client.aio import Client
from meta_client.aio.coordinator import Coordinator

zookeeper, dsn, directory = sys.argv[1:]
read, write = os.pipe()


async def main():
    try:
        await work()
    except SystemExit:
        os._exit(0)  # the loop and its threads are the parent's


async def work():
    refused = {}
    async with Client(zookeeper) as client, await Coordinator.open(directory, name="shop") as coordinator:
        producer, working = client.producer("shop"), client.producer("shop")
        await producer.send("orders", b"before")
        connection = await psycopg.AsyncConnection.connect(dsn)
        async with coordinator.transaction(connection, working, topics=("orders",)):
            await connection.execute("INSERT INTO placed VALUES (1)")
            await working.send_async("orders", b"in the block")
            if (pid := os.fork()) == 0:
                for name, use in {
                    "client.producer": lambda: client.producer(),
                    "producer.send": lambda: producer.send("orders", b"child"),
                    "working.send_async": lambda: working.send_async("orders", b"child"),
                    "coordinator.recover": lambda: coordinator.recover([], []),
                }.items():
                    try:
                        await use()
                    except CreatedBeforeFork as error:
                        refused[name] = str(error)
                    else:
                        refused[name] = ""
                os.write(write, json.dumps(refused).encode())
                sys.exit(0)
            for number in range(50):
                await producer.send("orders", b"parent %d" % number)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            for number in range(50, 100):
                await producer.send("orders", b"parent %d" % number)
            await working.send_async("orders", b"in the block, too")
        await connection.close()
    print(json.dumps([os.waitstatus_to_exitcode(status), json.loads(os.read(read, 65536))]))


asyncio.run(main())
"""


@pytest.mark.parametrize(("program", "of_the_child"), [(THREADS, {b"from the child"}), (TASKS, set[bytes]())])
def test_a_child_is_refused_and_its_parent_goes_on(
    zookeeper: Chroot, broker: BrokerProcess, database: Database, tmp_path: Path, program: str, of_the_child: set[bytes]
) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("CREATE TABLE placed (id int PRIMARY KEY)")
    words = [sys.executable, "-c", program, zookeeper.connect, database.dsn, str(tmp_path / "decisions")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    status, refused = json.loads(done.stdout)
    assert status == 0, done.stderr
    closing = refused.pop("consumer.close", "")
    assert closing == ""
    for name, text in refused.items():
        assert "made before fork, by the parent process: make a new one here" in text, (name, text)
    assert database.value("SELECT count(*) FROM placed") == 1
    with Client(zookeeper.connect) as client:
        found = [message.payload for message in read_whole(client, "orders", 4)]
    sent = {b"before", b"in the block", b"in the block, too", *(b"parent %d" % number for number in range(100))}
    assert sorted(found) == sorted(sent | of_the_child)


STORES = """
import os, sys
from pathlib import Path
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.offset_stores import LocalOffsetStore

for kind in (DeadLetterStore, LocalOffsetStore):
    directory = Path(sys.argv[1]) / kind.__name__
    store = kind.open(directory, "group")
    (parent, there), (here, child) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(child)
        os.write(there, b".")
        os.read(here, 1)  # until its parent is gone
        os._exit(0)
    os.read(parent, 1)
    store.close()
    kind.open(directory, "group").close()
"""


def test_a_child_does_not_hold_a_store_that_its_parent_has_let_go(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", STORES, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
