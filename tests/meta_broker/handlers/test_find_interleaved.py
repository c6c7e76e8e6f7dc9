"""Searches among what else the event loop does: every one is answered."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from journal.records.record import PartitionName
from journal.state.wall_clock import wall_clock_ms
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.find import FindHandler
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.store.key_indexer import KeyIndexer
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_client.protocol.answers import Found, FoundAt, parse_found
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import Find
from meta_client.protocol.responses import Result
from tests.fixtures.loops import in_loop, until

ORDERS = PartitionName("orders", 0)
FLAG, BODY = encode_body(b"x", "a")
FRAME = encode_frame(1, FLAG, BODY)


class Asker:
    """Minimal connection for a search. *then* is called soon after each answer."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.found: list[Found] = []
        self._then = then

    def send(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._then)
        for answer in ResponseDecoder().receive_data(data):
            assert isinstance(answer, Result)
            assert answer.is_success, answer.text
            self.found.append(parse_found(answer.message))


@dataclass
class Stage:
    store: MessageStore
    find: FindHandler
    worker: ThreadPoolExecutor

    def ask(self, asker: Asker, opaque: int) -> None:
        self.find.handle(Find("orders", 0, 0, 10, b"a", opaque), cast(Peer, asker))


@contextlib.asynccontextmanager
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """One message, FRAME, in a topic with an index of keys."""
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    topics = Topics({"orders": TopicConfig(index="attribute")})
    context = Context(
        config=BrokerConfig(data=tmp_path, broker_id=0, port=0),
        store=store,
        topics=topics,
        ids=MessageIds(0, wall_clock_ms),
        announcer=TopicAnnouncer(topics, store, None),
        url="",
        version="",
    )
    with ThreadPoolExecutor(1) as worker:
        result = store.transactions.put(ORDERS, [FRAME], len(FRAME), 1)
        store.publish(result.updates)
        store.journal.wait_flushed(result.lsn, 60)
        find = FindHandler(context, KeyIndexer(tmp_path / "keys", store, topics, worker), worker)
        yield Stage(store, find, worker)
        await find.close()
    store.close()


@in_loop
async def test_a_topic_is_deleted_while_its_index_is_looked_into(tmp_path: Path) -> None:
    asker, is_free = Asker(), threading.Event()
    async with stage(tmp_path) as on:
        on.worker.submit(is_free.wait)
        for opaque in range(3):
            on.ask(asker, opaque)
        await asyncio.sleep(0)  # the first one waits for the worker
        on.store.indexes.trim(ORDERS, len(FRAME))  # what a deletion does once it is acknowledged
        is_free.set()
        await until(lambda: len(asker.found) == 3)
    assert asker.found == [Found(len(FRAME), len(FRAME), [])] * 3


@in_loop
async def test_one_that_comes_at_the_moment_when_the_last_one_is_answered(tmp_path: Path) -> None:
    second = Asker()
    async with stage(tmp_path) as on:
        first = Asker(lambda: on.ask(second, 2))
        on.ask(first, 1)
        await until(lambda: len(second.found) == 1)
    assert first.found == second.found == [Found(len(FRAME), len(FRAME), [FoundAt(0, len(FRAME))])]


@in_loop
async def test_a_client_that_asks_for_much_holds_up_no_other(tmp_path: Path) -> None:
    order = list[str]()
    flood, other = Asker(lambda: order.append("flood")), Asker(lambda: order.append("other"))
    async with stage(tmp_path) as on:
        for opaque in range(20):
            on.ask(flood, opaque)
        on.ask(other, 20)
        await until(lambda: len(order) == 21)
    assert order.index("other") <= 1
