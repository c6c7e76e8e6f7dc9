"""The client for asyncio: the names of meta_client, with `await`, `async with` and `async for`.

    async with Client("127.0.0.1:2181") as client:
        producer = client.producer()
        place = await producer.send("orders", b"...")

What is sent when, what an answer means, what a transaction may do: those are the rules of meta_client itself, which
run in tasks here (bridge/), over the loop's sockets (net/) and timers (producer/). Only ZooKeeper is
talked to by threads, which are asked about brokers and groups, never for a message.
"""

from typing import TYPE_CHECKING, Any

from meta_client.aio.client import Client
from meta_client.aio.consumer import Consumer
from meta_client.aio.producer.producer import BranchHandle, LocalTransaction, Producer, SendManyHandle
from meta_client.aio.producer.sender import SendHandle
from meta_client.aio.transactions.transaction import Transaction

if TYPE_CHECKING:
    from meta_client.aio.offset_stores import TransactionOffsetStore
    from meta_client.aio.outbox import Outbox

__all__ = [
    "BranchHandle",
    "Client",
    "Consumer",
    "LocalTransaction",
    "Outbox",
    "Producer",
    "SendHandle",
    "SendManyHandle",
    "Transaction",
    "TransactionOffsetStore",
]


# Imported when first used: SQLAlchemy is an extra.
_HOMES = {"Outbox": "meta_client.aio.outbox", "TransactionOffsetStore": "meta_client.aio.offset_stores"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
