"""put: store one message, at once or inside a branch (spec 1.5.2, 2.5)."""

import random

from journal.errors import RecordTooLarge
from journal.records import PartitionName
from journal.states import BranchNotStarted, XaError
from journal.transaction_store import Done, Transaction
from journal.xid import XaKey
from meta_broker.processors.context import Context, Peer
from meta_client.protocol.answers import PutPlace, format_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import HEADER_BYTES, frame_header
from meta_client.protocol.requests import PARTITION_ANY, Put
from meta_client.protocol.status import Status


class PutRefused(Exception):
    """The put cannot be done; the text is the answer's detail."""


class PutProcessor:
    """Answers puts of a broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known_topics: set[str] = set()  # told to the listener

    def handle(self, put: Put, peer: Peer) -> None:
        self._context.counters.puts += 1
        if put.key is None:
            self._plain(put, peer)
        else:
            self._transactional(put, peer)

    def _plain(self, put: Put, peer: Peer) -> None:
        context = self._context
        if put.partition == PARTITION_ANY and (section := context.topics.find(put.topic)) is not None:
            put.partition = random.randrange(section.partitions)  # noqa: S311 (spreads load, keeps no secret)
        try:
            checksum = self._check(put)
            message_id, done = self._append(put, checksum)
        except (PutRefused, RecordTooLarge) as error:
            context.counters.puts_failed += 1
            place = f"[partition '{put.topic}-{put.partition}']"
            text = f"Put message to [broker '{context.url}'] {place} failed.Detail:{error}"
            peer.send(encode_result(Status.INTERNAL_ERROR, text.encode(), put.opaque))
            return
        text_of_place = b"%d %d %d" % (message_id, put.partition, done.publications[0].base)
        answer = encode_result(Status.SUCCESS, text_of_place, put.opaque)
        context.store.fence.after(done.lsn, self._acknowledge, done, peer, answer)

    def _append(self, put: Put, checksum: int) -> tuple[int, Done]:
        message_id = self._context.ids.next()
        header = frame_header(message_id, put.flag, len(put.body), checksum)
        name = PartitionName(put.topic, put.partition)
        store = self._context.store.transactions
        return message_id, store.put(name, (header, put.body), HEADER_BYTES + len(put.body), 1)

    def _acknowledge(self, done: Done, peer: Peer, answer: bytes) -> None:
        self._context.store.publish(done.publications)
        peer.send(answer)

    def _transactional(self, put: Put, peer: Peer) -> None:
        context = self._context
        try:
            transaction = self._transaction(put, peer)
            if put.partition == PARTITION_ANY:
                raise PutRefused(f"Invalid partition for transaction command:{put.partition}")
            checksum = self._check(put)
            message_id = context.ids.next()
            header = frame_header(message_id, put.flag, len(put.body), checksum)
            context.store.transactions.transactional_put(
                transaction,
                PartitionName(put.topic, put.partition),
                (header, put.body),
                HEADER_BYTES + len(put.body),
                1,
            )
        except (PutRefused, RecordTooLarge, XaError) as error:
            context.counters.puts_failed += 1
            context.answer_at_fence(peer, put.opaque, Status.INTERNAL_ERROR, str(error).encode())
            return
        # At once: an active branch is presumed aborted, so that this answer promises nothing a crash could break.
        place = format_put_place(PutPlace(message_id, put.partition, None))
        peer.send(encode_result(Status.SUCCESS, place, put.opaque))

    def _transaction(self, put: Put, peer: Peer) -> Transaction:
        key = put.key
        assert key is not None
        if isinstance(key, XaKey):
            return self._context.store.transactions.find(key)
        if (transaction := peer.local_transactions.get(key)) is None or transaction.is_over:
            raise BranchNotStarted(key)
        return transaction

    def _check(self, put: Put) -> int:
        """The checksum of the body, once the put is found legal. Raises PutRefused."""
        context = self._context
        if (section := context.topics.find(put.topic)) is None:
            raise PutRefused(f"The server do not accept topic {put.topic}")
        if not 0 <= put.partition < section.partitions:
            raise PutRefused(f"wrong partition {put.partition}")
        if len(put.body) > context.config.broker.message_bytes_max:
            raise PutRefused(
                f"a message of {len(put.body)} bytes is larger than message_bytes_max "
                f"{context.config.broker.message_bytes_max}"
            )
        checksum = crc31(put.body)
        if put.checksum is not None and put.checksum != checksum:
            raise PutRefused("Checksum failure,message may be corrupted when transfering on networking.")
        if put.topic not in self._known_topics:
            self._known_topics.add(put.topic)
            context.listener.topic_used(put.topic)
        return checksum
