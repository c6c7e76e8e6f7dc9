"""Client of a MetaQ cluster: threads, synchronous; owns the wire protocol, which brokers import.

Read: protocol/ (pure: the wire) -> errors -> net/ (connections) -> metadata/ (brokers and partitions of a topic) ->
producer/ (batches, local transactions, XA branches) -> consumer/ (with its offset stores and dead letters) -> client
(entry point) -> operations/ -> cli/. coordinator/ is built on a producer, transactions/ (a row and a message, decided
by the database) on both, batches/ (Spark's micro-batches) on all three. admin/ serves metrics and health of any
process. own_journal: what coordinators and dead letters keep on disk. operations/ has what operators ask and do,
console/ a web page for it. aio/ is the same for asyncio, with the same rules over its own sockets and timers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from journal.records.xid import Xid
    from meta_client.client import Client
    from meta_client.consumer.config import ConsumerConfig
    from meta_client.consumer.consumer import Consumer
    from meta_client.consumer.error_policy import Reject, Retry
    from meta_client.consumer.messages.batch import Batch
    from meta_client.consumer.messages.received_message import ReceivedMessage
    from meta_client.consumer.offsets import OffsetStore
    from meta_client.errors import (
        BufferFull,
        ClientClosed,
        ConsumerMisuse,
        InvalidGroup,
        InvalidSecurity,
        NoBroker,
        NoPartition,
        NotConnected,
        NotReplicated,
        NotSupported,
        PartitionClosed,
        ReplyTimeout,
        SendFailed,
        SendRefused,
        SendUnknown,
        TransactionFailed,
        TransactionMisuse,
        TransactionUnknown,
        TryAgain,
    )
    from meta_client.net.security import Credentials
    from meta_client.net.tls import TlsConfig
    from meta_client.producer.batch import SendHandle
    from meta_client.producer.branch_batch import BranchHandle
    from meta_client.producer.local_transaction import LocalTransaction
    from meta_client.producer.many_sends import SendManyHandle
    from meta_client.producer.partition_queues import BatchingConfig
    from meta_client.producer.partitioners import ByAttribute, PartitionContext, Partitioner
    from meta_client.producer.producer import Producer
    from meta_client.producer.results import SendResult
    from meta_client.producer.xa_verbs import Listing
    from meta_client.protocol.answers import BranchStatus
    from meta_client.protocol.errors import LocalProtocolError, MetaError, RemoteError, XaError
    from meta_client.protocol.xa import XaCode
    from meta_client.transactions.manager import TransactionConfig
    from meta_client.transactions.transaction import Transaction
    from zk.tree.nodes import Partition

__all__ = [
    "Batch",
    "BatchingConfig",
    "BranchHandle",
    "BranchStatus",
    "BufferFull",
    "ByAttribute",
    "Client",
    "ClientClosed",
    "Consumer",
    "ConsumerConfig",
    "ConsumerMisuse",
    "Credentials",
    "InvalidGroup",
    "InvalidSecurity",
    "Listing",
    "LocalProtocolError",
    "LocalTransaction",
    "MetaError",
    "NoBroker",
    "NoPartition",
    "NotConnected",
    "NotReplicated",
    "NotSupported",
    "OffsetStore",
    "Partition",
    "PartitionClosed",
    "PartitionContext",
    "Partitioner",
    "Producer",
    "ReceivedMessage",
    "Reject",
    "RemoteError",
    "ReplyTimeout",
    "Retry",
    "SendFailed",
    "SendHandle",
    "SendManyHandle",
    "SendRefused",
    "SendResult",
    "SendUnknown",
    "TlsConfig",
    "Transaction",
    "TransactionConfig",
    "TransactionFailed",
    "TransactionMisuse",
    "TransactionUnknown",
    "TryAgain",
    "XaCode",
    "XaError",
    "Xid",
]

# Imported when first used: a broker needs only meta_client.protocol, and the command line only its own commands.
_NAMES = {  # by module
    "journal.records.xid": "Xid",
    "meta_client.client": "Client",
    "meta_client.consumer.config": "ConsumerConfig",
    "meta_client.consumer.consumer": "Consumer",
    "meta_client.consumer.error_policy": "Reject Retry",
    "meta_client.consumer.messages.batch": "Batch",
    "meta_client.consumer.messages.received_message": "ReceivedMessage",
    "meta_client.consumer.offsets": "OffsetStore",
    "meta_client.errors": "BufferFull ClientClosed ConsumerMisuse InvalidGroup InvalidSecurity NoBroker NoPartition "
    "NotConnected NotReplicated NotSupported PartitionClosed ReplyTimeout SendFailed SendRefused "
    "SendUnknown TransactionFailed TransactionMisuse TransactionUnknown TryAgain",
    "meta_client.net.security": "Credentials",
    "meta_client.net.tls": "TlsConfig",
    "meta_client.producer.batch": "SendHandle",
    "meta_client.producer.branch_batch": "BranchHandle",
    "meta_client.producer.local_transaction": "LocalTransaction",
    "meta_client.producer.many_sends": "SendManyHandle",
    "meta_client.producer.partition_queues": "BatchingConfig",
    "meta_client.producer.partitioners": "ByAttribute PartitionContext Partitioner",
    "meta_client.producer.producer": "Producer",
    "meta_client.producer.results": "SendResult",
    "meta_client.producer.xa_verbs": "Listing",
    "meta_client.protocol.answers": "BranchStatus",
    "meta_client.protocol.errors": "LocalProtocolError MetaError RemoteError XaError",
    "meta_client.protocol.xa": "XaCode",
    "meta_client.transactions.manager": "TransactionConfig",
    "meta_client.transactions.transaction": "Transaction",
    "zk.tree.nodes": "Partition",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
