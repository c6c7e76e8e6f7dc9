"""A search that waits for its thread while its topic is deleted: it is answered, and so are those behind it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from journal.records import PartitionName
from journal.transaction_store import wall_clock_ms
from meta_broker.config import BrokerConfig, TopicConfig
from meta_broker.message_ids import MessageIds
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.find import FindProcessor
from meta_broker.store.key_indexer import KeyIndexer
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.transactions.timeouts import Timeouts
from meta_client.protocol.answers import Found, parse_found
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import Find
from meta_client.protocol.responses import Result
from tests.fixtures.loops import in_loop, until

ORDERS = PartitionName("orders", 0)


class Listener:
    def topic_used(self, topic: str) -> None: ...

    def topic_changed(self, topic: str) -> None: ...


class Asker:
    """As much of a connection as a search needs."""

    def __init__(self) -> None:
        self.found: list[Found] = []

    def send(self, data: bytes) -> None:
        for answer in ResponseDecoder().receive_data(data):
            assert isinstance(answer, Result)
            assert answer.is_success, answer.text
            self.found.append(parse_found(answer.message))


@in_loop
async def test_a_topic_is_deleted_while_its_index_is_looked_into(tmp_path: Path) -> None:
    flag, body = encode_body(b"x", "a")
    frame = encode_frame(1, flag, body)
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    topics = Topics({"orders": TopicConfig(index="attribute")})
    context = Context(
        config=BrokerConfig(data=tmp_path, broker_id=0, port=0),
        store=store,
        topics=topics,
        ids=MessageIds(0, wall_clock_ms),
        timeouts=Timeouts(),
        listener=Listener(),
        url="",
        version="",
    )
    asker, is_free = Asker(), threading.Event()
    with ThreadPoolExecutor(1) as worker:
        done = store.transactions.put(ORDERS, [frame], len(frame), 1)
        store.publish(done.publications)
        store.journal.wait_flushed(done.lsn, 10)
        find = FindProcessor(context, KeyIndexer(tmp_path / "keys", store, topics, worker), worker)
        worker.submit(is_free.wait)
        for opaque in range(3):
            find.handle(Find("orders", 0, 0, 10, b"a", opaque), cast(Peer, asker))
        await asyncio.sleep(0)  # the first one waits for the worker
        store.indexes.trim(ORDERS, len(frame))  # what a deletion does once it is acknowledged
        is_free.set()
        await until(lambda: len(asker.found) == 3)
        await find.close()
    assert asker.found == [Found(len(frame), len(frame), [])] * 3
    store.close()
