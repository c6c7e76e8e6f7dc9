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

__all__ = [
    "BranchHandle",
    "Client",
    "Consumer",
    "LocalTransaction",
    "Producer",
    "SendHandle",
    "SendManyHandle",
    "Transaction",
    "TransactionOffsetStore",
]


def __getattr__(name: str) -> Any:
    """Import TransactionOffsetStore when it is first used: SQLAlchemy is an extra."""
    if name != "TransactionOffsetStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from meta_client.aio.offset_stores import TransactionOffsetStore

    return TransactionOffsetStore
