"""Producer: sends messages plainly, in local transactions, or in XA branches."""

import itertools
from collections.abc import Collection, Iterable

from journal.records.xid import LocalKey, Xid
from meta_client.errors import ClientXaError, Destination, ReplyTimeout, SendUnknown, TransactionMisuse
from meta_client.metadata.topology import TopicView
from meta_client.net.deadline import Deadline, time_limit
from meta_client.net.identity import default_qualifier, new_session_id
from meta_client.producer.interfaces import Adds, ClientParts, Enlists
from meta_client.producer.local_transaction import LocalTransaction
from meta_client.producer.many_sends import JoinedHandle, SendManyHandle, add_run, send_run
from meta_client.producer.message_run import encode_run
from meta_client.producer.outgoing import (
    Compression,
    Outgoing,
    RoundRobin,
    available_in,
    encode_message,
    parse_partition,
    view_of,
)
from meta_client.producer.partitioners import Partitioner, choose
from meta_client.producer.results import Handle, SendResult
from meta_client.producer.transaction_owner import TransactionOwner
from meta_client.producer.xa import XaBranches
from meta_client.producer.xa_branch import ProducerBranch
from meta_client.producer.xa_verbs import Listing, XaVerbs
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.xa import XaCode
from meta_client.tracing import TRACING
from zk.forks import ProcessBound, invalidate_after_fork
from zk.tree.nodes import Partition

SEND_TIMEOUT_S = 3.0  # spec 7.4


class Producer(ProcessBound):
    """Sends messages. Cheap: it owns no thread and no socket. Client.producer() makes it.

    Outside transactions any thread may send. A transaction, and its producer with it, belongs to the thread that began
    it or joined it last: others get TransactionMisuse. *qualifier* names the group of producers that recover each
    other's prepared branches (tpc_recover).
    """

    def __init__(
        self,
        parts: ClientParts,
        qualifier: str | None,
        compression: Compression | None,
        partitioner: Partitioner | None,
    ) -> None:
        self.qualifier = qualifier or default_qualifier()
        self.session_id = new_session_id()
        self._parts = parts
        invalidate_after_fork(self)
        self._sender = sender = parts.sender
        self._quick_add = sender.quick_add if compression is None and partitioner is None else None
        self._compression = compression
        self._partitioner = partitioner
        self._choice = RoundRobin()
        self._numbers = itertools.count(1)  # of local transactions
        self._transaction: LocalTransaction | None = None
        self._owner = TransactionOwner()  # of the last transaction
        self._xa = XaBranches(XaVerbs(parts.topology, parts.connections, self.session_id), self.qualifier)
        self._within: Enlists | None = None

    def send(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> SendResult:
        """Send one message and wait for the broker's answer: to *partition*, to the one that the *partitioner* chooses,
        or to the topic's partitions in turn.

        Acknowledged means durable as the broker's flush mode says; within a transaction, that the message is part of
        it. *timeout_s* covers everything: finding the broker, connecting, and retries. A message without a named or
        chosen partition goes to another broker while it can't have reached the first; one for a certain partition waits
        for its broker. Once it may have arrived it is sent again only to a metaq broker, which stores it once, and
        never within a transaction. It does not overtake messages of send_async for the same named or chosen partition.

        Raises SendFailed (the subclass tells whether the message may be stored), LocalProtocolError, zk's InvalidName.
        """
        if TRACING.hooks is None:
            return self._send(topic, payload, attribute, partition, timeout_s)
        with TRACING.hooks.sending(topic):
            return self._send(topic, payload, attribute, partition, timeout_s)

    def _send(
        self, topic: str, payload: bytes, attribute: str | None, partition: Partition | str | None, timeout_s: float
    ) -> SendResult:
        deadline = Deadline(timeout_s)
        message = self._outgoing(self._view(topic, deadline.remaining_s()), payload, attribute, partition)
        if self._within is not None:
            self._within.check()
            return self._within.send(message, deadline)
        if (branch := self._xa.current) is not None:
            self._owner.check("branch", branch.xid)
            return self._xa.put(message, deadline)
        if (transaction := self._current()) is not None:
            self._owner.check("transaction", transaction.key)
            return transaction.put(message, deadline)
        if message.wanted is not None and self._sender.has_pending(topic, message.wanted):
            return self._send_behind(message, message.wanted, deadline)
        return self._parts.sends.send(message, deadline)

    def send_async(
        self,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
    ) -> Handle:
        """Send one message with others, without waiting; the handle's `result()` returns its place.

        In an XA branch it is sent with the next `send` or verb, and tpc_prepare raises XaError (XAER_RMERR) if it is
        not in the branch. Outside transactions messages are gathered by time and size per partition (Client's
        *batching*), and a batch is sent again until it is answered, for delivery_timeout_s at most: a metaq broker
        stores it once. Messages for a partition named here, or chosen by the *partitioner*, stay in order and wait for
        its broker; other batches, as long as they were never sent, go to another broker if their own can't be reached.

        Blocks, or raises BufferFull, while too much is unacknowledged. Raises NoPartition; NoBroker if ZooKeeper can't
        be asked; LocalProtocolError for what can't be sent at all; TransactionMisuse within a local transaction, which
        takes `send` only.
        """
        # What most messages are: without a call of Python's.
        add = self._quick_add if partition is None and TRACING.hooks is None and self._within is None else None
        is_outside = self._xa.current is None and (self._transaction is None or self._current() is None)
        if add is not None and is_outside and (handle := add(topic, payload, None, 0, attribute)) is not None:
            return handle
        if (within := self._joined()) is not None:
            return within.add(self._outgoing(self._view(topic, SEND_TIMEOUT_S), payload, attribute, partition))
        # The sender looks up the view once per batch; per message only for compression and partitioners.
        compression = None if self._compression is None else self._compression_for(self._view(topic, SEND_TIMEOUT_S))
        wanted = None if partition is None else parse_partition(partition)
        if wanted is None and self._partitioner is not None:
            wanted = self.partition_for(self._view(topic, SEND_TIMEOUT_S), payload, attribute, None)
        flag, body = encode_message(topic, payload, attribute, compression)
        return self._sender.add(topic, wanted, flag, body)

    def send_many(
        self, topic: str, payloads: Iterable[bytes], keys: Iterable[str | None] | None = None
    ) -> SendManyHandle | JoinedHandle:
        """Send many messages as send_async does, for a fraction of its cost; return one handle for all of them.

        *payloads*: a list, a one-dimensional numpy array of bytes (kind S: without the zeros that pad them), or an
        Arrow binary array. *keys*, one for each or None, are the messages' attributes. The *partitioner* chooses for
        each message; without one a whole batch goes to the next partition. Order: as given, within a partition.

        Blocks while too much is unacknowledged. BufferFull, and what can't be sent at all (LocalProtocolError,
        TypeError, ValueError, with the index of the message), is raised before anything is sent. Raises as send_async,
        too; if that comes midway, the messages before it are on their way. Within transactions as send_async.
        """
        within = self._joined()
        compression = None if self._compression is None else self._compression_for(self._view(topic, SEND_TIMEOUT_S))
        run, listed, attributes = encode_run(topic, payloads, keys, compression)
        if within is None and self._partitioner is None:
            return send_run(self._sender, topic, run, None)
        view = self._view(topic, SEND_TIMEOUT_S)
        each = zip(listed, attributes or itertools.repeat(None))  # noqa: B905 - repeat() is endless
        chosen = [self.partition_for(view, payload, attribute, None) for payload, attribute in each]
        if within is not None:
            return add_run(within, view, run, chosen, self._choice)
        return send_run(self._sender, topic, run, chosen)

    def _joined(self) -> Adds | None:
        """Return what takes the messages of send_async within a transaction; None outside. Raises TransactionMisuse."""
        if self._transaction is not None and (transaction := self._current()) is not None:
            self._owner.check("transaction", transaction.key)
            raise TransactionMisuse("send_async is not for local transactions: use send, or finish it first")
        if self._within is not None:
            self._within.check()
            return self._within
        if (branch := self._xa.current) is not None:
            self._owner.check("branch", branch.xid)
            return self._xa
        return None

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything gathered by send_async, of all producers of the client, and wait until it is settled.

        Raises the first SendFailed of any message since the last flush; ReplyTimeout after *timeout_s*.
        """
        self._sender.flush(timeout_s)

    def partitions(self, topic: str, timeout_s: float = SEND_TIMEOUT_S) -> tuple[Partition, ...]:
        """Return the partitions that `send` chooses from now, one at least. Raises NoPartition or NoBroker."""
        return available_in(self._view(topic, timeout_s))

    def transaction(self, timeout_s: float = 0) -> LocalTransaction:
        """Begin a local transaction on one broker: everything this producer sends until its end belongs to it.

        Use as a context manager: the end of the block commits, an exception rolls back. The broker rolls it back when
        the connection breaks, or after *timeout_s* (0: never). Raises TransactionMisuse while another transaction or
        branch is open, LocalProtocolError for a time limit that no broker takes.
        """
        seconds = time_limit(timeout_s)
        if self._within is not None:
            raise TransactionMisuse("the producer has joined a transaction: end that one, or use another producer")
        if (open_one := self._current()) is not None:
            raise TransactionMisuse(f"transaction {open_one.key} is not over: finish it before another one")
        if (branch := self._xa.current) is not None:
            raise TransactionMisuse(f"branch {branch.xid} is {branch}: finish it before a local transaction")
        key = LocalKey(self.session_id, next(self._numbers))
        self._transaction = LocalTransaction(key, seconds, self._parts.connections)
        self._owner = TransactionOwner()
        return self._transaction

    def tpc_begin(self, xid: Xid, topics: Collection[str] = (), timeout_s: float = 0) -> None:
        """Begin XA branch *xid* on a broker that has all *topics*: everything this producer sends until its end belongs
        to it. The broker rolls it back after *timeout_s* (0: never) unless it is prepared.

        BEGIN is sent with the first message or verb, and *timeout_s* counts from there: if the broker refuses it, that
        call raises its XaError. (Brokers without `mput` are asked at once.) Raises XaError: XAER_RMFAIL if no such
        broker answers, XAER_PROTO or XAER_DUPID while a branch is active.
        """
        if self._within is not None:
            raise ClientXaError(XaCode.XAER_PROTO, "the producer has joined a transaction: end that", f"BEGIN {xid}")
        if (transaction := self._current()) is not None:
            text = f"local transaction {transaction.key} is not over: finish it first"
            raise ClientXaError(XaCode.XAER_PROTO, text, f"BEGIN {xid}")
        self._xa.begin(xid, topics, timeout_s)
        self._owner = TransactionOwner()

    def join(self) -> None:
        """Make the calling thread or task the owner of the open transaction or branch: others get TransactionMisuse."""
        self._owner.transfer_to_caller()

    def enter(self, transaction: Enlists) -> None:
        """Send into *transaction* until `leave`; called by Transaction.join. Raises TransactionMisuse."""
        if self._within is not None or self.is_in_transaction:
            raise TransactionMisuse("the producer is in a transaction already: end that one first, or join another one")
        self._within = transaction

    def leave(self) -> None:
        """End the effect of `enter`."""
        self._within = None

    def tpc_prepare(self) -> bool:
        """Prepare the branch (first phase): it can commit or roll back after any crash. False: it was read-only and is
        over. Raises XaError; then roll it back."""
        with self._xa.traced("tpc_prepare", None):
            return self._xa.prepare()

    def tpc_commit(self, xid: Xid | None = None) -> None:
        """Commit the current branch (in one phase if it is not prepared), or prepared branch *xid*.

        Raises XaError. XAER_RMFAIL: unknown, call again. XAER_NOTA: that branch is not prepared (any more).
        """
        with self._xa.traced("tpc_commit", xid):
            self._xa.commit(xid)

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Roll back the current branch, prepared or not, or prepared branch *xid*. Raises XaError as tpc_commit."""
        with self._xa.traced("tpc_rollback", xid):
            self._xa.rollback(xid)

    def tpc_status(self, xid: Xid, broker_id: int) -> BranchStatus | None:
        """Return the status of a branch at broker *broker_id*, under this producer's qualifier, finished ones too.

        None: that broker lacks the extension `status`. Raises XaError (XAER_RMFAIL).
        """
        return self._xa.status(xid, broker_id)

    def tpc_forget(self, xid: Xid) -> None:
        """Drop the heuristic outcome of *xid* at its broker, once it has been examined. Raises XaError."""
        self._xa.forget(xid)

    def tpc_recover(self) -> list[Xid]:
        """Return prepared branches and heuristic outcomes under this producer's qualifier, on all brokers.

        Raises XaError (XAER_RMFAIL) if a broker can't be asked or is known to have crashed, or none is registered: see
        tpc_list.
        """
        return self._xa.recover()

    def tpc_list(self) -> Listing:
        """List by broker what tpc_recover returns, with the brokers that could not be asked. Raises XaError if
        ZooKeeper is away."""
        return self._xa.list_prepared("RECOVER")

    def twin(self) -> "Producer":
        """Return another producer of the same client and qualifier, with no transaction open."""
        return Producer(self._parts, self.qualifier, self._compression, self._partitioner)

    @property
    def is_in_transaction(self) -> bool:
        """True if messages sent now become part of a transaction or branch."""
        return self._within is not None or self._xa.current is not None or self._current() is not None

    @property
    def tpc_branch(self) -> ProducerBranch | None:
        """Current branch: its xid, the id of its broker, and its state."""
        return self._xa.current

    def _outgoing(
        self, view: TopicView, payload: bytes, attribute: str | None, partition: Partition | str | None
    ) -> Outgoing:
        wanted = self.partition_for(view, payload, attribute, partition)
        flag, body = encode_message(view.topic, payload, attribute, self._compression_for(view))
        return Outgoing(view, flag, body, wanted, self._choice)

    def partition_for(
        self, view: TopicView, payload: bytes, attribute: str | None, partition: Partition | str | None
    ) -> Partition | None:
        """Return the partition this message has to go to; None if any will do."""
        if partition is not None:
            return parse_partition(partition)
        if self._partitioner is None:
            return None
        bound = self._xa.current or self._current()
        return choose(self._partitioner, view, payload, attribute, None if bound is None else bound.broker_id)

    def _send_behind(self, message: Outgoing, wanted: Partition, deadline: Deadline) -> SendResult:
        """Send by way of send_async, which has messages for *wanted* that this one must not overtake."""
        topic = message.view.topic
        handle = self._sender.add(topic, wanted, message.flag, message.body)
        self._sender.push(topic, wanted)
        try:
            return handle.result(deadline.remaining_s())
        except ReplyTimeout as error:
            text = f"not answered within {deadline.timeout_s:g} s, behind others: it is still being sent"
            raise SendUnknown(text, Destination(topic, wanted)) from error

    def _current(self) -> LocalTransaction | None:
        transaction = self._transaction
        return transaction if transaction is not None and transaction.is_current else None

    def _compression_for(self, view: TopicView) -> Compression | None:
        compression = self._compression
        return compression if compression is not None and self._parts.allowed.allows(view, compression.codec) else None

    def _view(self, topic: str, timeout_s: float) -> TopicView:
        return view_of(self._parts.topology, topic, timeout_s)
