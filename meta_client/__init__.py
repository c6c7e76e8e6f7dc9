"""The client of a MetaQ cluster: threads, synchronous; it owns the wire protocol, which brokers import.

Read: protocol/ (pure: the wire) -> errors, deadline, identity, opaques, heartbeat, results, calls -> connection,
connections -> topology and direct (who takes messages), allowed_codecs -> placing, puts, batching/, single_sends,
local_transaction, xa_verbs, branch_puts, branch_flight, xa, producer -> consumer/ (pure parts first), offset_stores/
-> client (what users make) -> cli/. coordinator/ is built on a producer. aio/ is the same for asyncio: these rules, but
sockets and timers of its own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from journal.xid import Xid
    from meta_client.batching.batch import SendHandle
    from meta_client.batching.lanes import BatchingConfig
    from meta_client.client import Client
    from meta_client.consumer.batch import Batch, ReceivedMessage
    from meta_client.consumer.config import ConsumerConfig
    from meta_client.consumer.consumer import Consumer
    from meta_client.consumer.refusing import Reject, Retry
    from meta_client.placing import ByAttribute, ToPlace
    from meta_client.results import SendResult

__all__ = [
    "Batch",
    "BatchingConfig",
    "ByAttribute",
    "Client",
    "Consumer",
    "ConsumerConfig",
    "ReceivedMessage",
    "Reject",
    "Retry",
    "SendHandle",
    "SendResult",
    "ToPlace",
    "Xid",
]

# Imported when first used: a broker needs only meta_client.protocol, and the command line only its own commands.
_HOMES = {
    "Batch": "meta_client.consumer.batch",
    "BatchingConfig": "meta_client.batching.lanes",
    "ByAttribute": "meta_client.placing",
    "Client": "meta_client.client",
    "Consumer": "meta_client.consumer.consumer",
    "ConsumerConfig": "meta_client.consumer.config",
    "ReceivedMessage": "meta_client.consumer.batch",
    "Reject": "meta_client.consumer.refusing",
    "Retry": "meta_client.consumer.refusing",
    "SendHandle": "meta_client.batching.batch",
    "SendResult": "meta_client.results",
    "ToPlace": "meta_client.placing",
    "Xid": "journal.xid",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
