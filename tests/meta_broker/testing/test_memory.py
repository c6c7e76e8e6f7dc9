"""Faults of a cluster in memory, promises it keeps, leftovers."""

import faulthandler
import math
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path

import pytest

from meta_broker.errors import ConfigError
from meta_broker.testing.memory.cluster import MemoryCluster
from meta_client.consumer.config import ConsumerConfig
from meta_client.net.opaques import next_opaque
from meta_client.protocol.requests import TakeCheckpoint
from meta_client.protocol.responses import Result
from meta_client.transactions.databases import init
from zk.forks import CreatedBeforeFork

CONFIG = ConsumerConfig(backoff_s_max=0.05)
ANSWER_S = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_brokers_of_which_one_goes_and_comes() -> None:
    with MemoryCluster({"orders": 2}, brokers=(0, 1)) as cluster:
        client = cluster.client()
        producer = client.producer()
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0, 1}
        cluster.kill(1)
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0}
        cluster.start(1)
        wait_until(lambda: len(client.topology.view("orders", 1).available) == 4)
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0, 1}


def test_what_no_broker_would_start_with_is_refused_here_too() -> None:
    with pytest.raises(ConfigError, match="this cluster: topics"):
        MemoryCluster({"two words": 1})
    with pytest.raises(ConfigError, match="partitions is 0"):
        MemoryCluster({"orders": 0})
    with pytest.raises(ConfigError, match="1024: a broker id is a number from 0 to 1023"):
        MemoryCluster(brokers=(0, 1024))


def test_a_partition_that_is_not_there_cannot_be_closed() -> None:
    with MemoryCluster({"orders": 2}) as cluster, pytest.raises(ValueError, match="orders has partitions 0 to 1"):
        cluster.close_partition("orders", "0-7")


def test_a_row_and_a_message_both_or_neither(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    init(url, 3600)
    with MemoryCluster() as cluster, closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        client = cluster.client()
        shop.execute("CREATE TABLE orders (id text)")
        shop.commit()
        with client.transaction(shop, wait=True) as transaction:
            shop.execute("INSERT INTO orders VALUES ('1')")
            transaction.send("orders", b"1")
        with suppress(LookupError), client.transaction(shop) as transaction:
            shop.execute("INSERT INTO orders VALUES ('2')")
            transaction.send("orders", b"2")
            raise LookupError
        assert shop.execute("SELECT id FROM orders").fetchall() == [("1",)]
        with client.consumer("g", config=CONFIG) as consumer:
            consumer.subscribe("orders")
            consumer.start()
            assert [message.payload for message in consumer.fetch(10, timeout_s=60)] == [b"1"]


def test_a_checkpoint_by_which_it_starts_again() -> None:
    with MemoryCluster({"orders": 1}) as cluster:
        client = cluster.client()
        client.producer().send("orders", b"before")
        (url,) = client.topology.read_masters().values()
        answer = client.connections.get(url, ANSWER_S).submit(TakeCheckpoint(next_opaque())).wait(ANSWER_S)
        assert isinstance(answer, Result)
        assert answer.is_success, answer.text
        client.producer().send("orders", b"after")
        cluster.kill()
        cluster.start()
        wait_until(lambda: bool(client.topology.view("orders", ANSWER_S).available))
        assert [message.payload for message in client.browse("orders")] == [b"before", b"after"]


def test_one_step_at_a_time() -> None:
    with MemoryCluster({"orders": 1}) as cluster, ThreadPoolExecutor(3) as pool:
        client = cluster.client()
        for number in range(10):
            client.producer().send("orders", b"%d" % number)
            killed = [pool.submit(cluster.kill) for _ in range(2)]
            wait(killed, 0.001)
            with suppress(AssertionError):  # it starts before it is killed
                pool.submit(cluster.start).result(ANSWER_S)
            wait(killed, ANSWER_S)
            cluster.kill()
            cluster.start()
            wait_until(lambda: bool(client.topology.view("orders", ANSWER_S).available))
        assert [message.payload for message in client.browse("orders")] == [b"%d" % number for number in range(10)]
    with pytest.raises(RuntimeError, match="the cluster is closed"):
        cluster.kill()


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 1e10])
def test_a_time_that_no_broker_can_have(seconds: float) -> None:
    with MemoryCluster() as cluster:
        with pytest.raises(ValueError, match="cannot advance by"):
            cluster.advance(seconds)
        cluster.client().producer().send("orders", b"")


def test_a_forked_child_leaves_the_block_at_once() -> None:
    with MemoryCluster() as cluster:
        if (child := os.fork()) == 0:
            try:
                faulthandler.dump_traceback_later(20, exit=True)
                cluster.__exit__(None, None, None)
                with pytest.raises(CreatedBeforeFork):
                    cluster.kill()
                os._exit(3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        cluster.client().producer().send("orders", b"")


def test_what_it_leaves_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, no open file and no directory outlives it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def left() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    with MemoryCluster() as cluster:
        cluster.client().producer().send("orders", b"x")
    before = left()
    for _ in range(5):
        with MemoryCluster(brokers=(0, 1)) as cluster:
            cluster.client().producer().send("orders", b"x")
            assert list(tmp_path.glob("metaq-memory-*"))
            cluster.kill(1)
    threads, files = left()
    assert threads <= before[0]
    assert files <= before[1]
    assert list(tmp_path.iterdir()) == []
