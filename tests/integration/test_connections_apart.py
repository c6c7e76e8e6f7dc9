"""Reads and sends use separate connections: neither waits for the other's answers."""

from meta_client.client import Client
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from tests.integration.conftest import Inbox, wait_until
from zk.tree.broker_url import BrokerUrl


def test_a_client_sends_and_reads_over_two_connections(wide_broker: BrokerProcess, client: Client) -> None:
    url, producer, inbox = BrokerUrl("127.0.0.1", wide_broker.port), client.producer(), Inbox()
    with WireClient(wide_broker.port) as watch:

        def connections() -> int:
            lines = dict(line.split(" ", 1) for line in watch.stats() if line.startswith("curr_connections"))
            return int(lines["curr_connections"]) - 1  # this one

        producer.send("wide", b"zeroth")
        assert connections() == 1  # who only sends needs no other
        with client.consumer("apart") as consumer:
            consumer.subscribe("wide", inbox)
            consumer.start()
            wait_until(lambda: len(consumer.owned()) == 8)
            producer.send("wide", b"first")
            wait_until(lambda: b"first" in inbox.payloads)
            assert connections() == 2
            reading, sending = client.consumer_connections.get(url, 5), client.connections.get(url, 5)
            assert reading is not sending
            reading.close()
            producer.send("wide", b"second")
            assert not sending.is_broken
            wait_until(lambda: b"second" in inbox.payloads)  # it has made itself a new one
