"""Searches a partition for the command line: at the broker if possible (extension `find`), else by reading it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from meta_client.client import Client
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import BrokerAway, NotSupported
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.operations.positions import ask_range
from meta_client.operations.progress import Progress
from meta_client.operations.reading import read_from
from meta_client.protocol.answers import parse_found
from meta_client.protocol.id_layout import broker_of, time_ms_of
from meta_client.protocol.limits import FIND_MATCHES_MAX
from meta_client.protocol.requests import Find
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

EXTENSION: Final = "find"
ANSWER_TIMEOUT_S: Final = 30.0  # a broker runs concurrent searches one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Search criteria, all of which must match."""

    key: str | None = None
    message_id: int | None = None
    since_ms: int | None = None

    def agrees(self, message: ReceivedMessage) -> bool:
        is_key = self.key is None or message.attribute == self.key
        return is_key and (self.message_id is None or message.message_id == self.message_id)

    @property
    def on_wire(self) -> bytes | int | None:
        """Criterion that a broker can search for; None: only a time is given."""
        return self.message_id if self.message_id is not None else None if self.key is None else self.key.encode()


class Hit(NamedTuple):
    """A match, and its put time (Unix milliseconds), if its id contains one."""

    message: ReceivedMessage
    time_ms: int | None


def search_partition(
    client: Client, topic: str, partition: Partition, url: BrokerUrl | None, wanted: Wanted, matches_max: int
) -> Iterator[Hit]:
    """Yield the messages of one partition that match *wanted*, by offset, *matches_max* at most.

    Raises BrokerAway, NotSupported (a time, at a broker without times), and the errors of reading.
    """
    what = f"{topic}/{partition}"
    if url is None:
        raise BrokerAway(f"find in {what}: its broker is not up: start it, or wait")
    connection = client.connections.get(url, CONNECT_TIMEOUT_S)
    capabilities = connection.capabilities(ANSWER_TIMEOUT_S)
    checked_broker(connection, capabilities, partition.broker_id)
    is_metaq = capabilities.metaq_version is not None
    if is_metaq and wanted.message_id is not None and broker_of(wanted.message_id) != partition.broker_id:
        return  # the ids of a metaq broker are all its own

    def search_there(criterion: bytes | int, offset: int) -> Iterator[ReceivedMessage]:
        """Yield the broker's matches, each read at its offset. May request more than is consumed."""
        while True:
            count = min(matches_max, FIND_MATCHES_MAX)
            request = Find(topic, partition.number, offset, count, criterion, next_opaque())
            reply = connection.submit(request)
            found = parse_found(wait_result(reply, ANSWER_TIMEOUT_S, f"find in {what} from {offset} on").message)
            for place in found.matches:
                message = next(read_from(client, topic, partition, url, place.offset, place.bytes), None)
                if message is not None and message.offset == place.offset:  # else it was deleted in between
                    yield message
            if found.next_offset >= found.end:
                return
            offset = found.next_offset
            progress.expect(found.end)
            progress.at(offset)

    start = 0
    if wanted.since_ms is not None:
        found = ask_range(connection, topic, partition, wanted.since_ms)
        if found is None:
            raise NotSupported(f"{url} knows nothing of times: search {what} without --since")
        start = found.at
    with Progress(f"searched {what} up to offset", "", is_shared=True) as progress:
        searched: Iterator[ReceivedMessage]
        if wanted.on_wire is None:
            searched = read_from(client, topic, partition, url, start)
        elif EXTENSION in capabilities.extensions:
            searched = search_there(wanted.on_wire, start)
        else:
            click.echo(f"warning: {url} can't search: {what} is read here, message by message", err=True)
            searched = _reported(read_from(client, topic, partition, url, start), progress.at)
        left = matches_max
        for message in searched:
            if wanted.agrees(message):
                yield Hit(message, time_ms_of(message.message_id) if is_metaq else None)
                left -= 1
            if not left:
                return


def _reported(messages: Iterator[ReceivedMessage], tell: Callable[[int], None]) -> Iterator[ReceivedMessage]:
    for message in messages:
        tell(message.offset)
        yield message
