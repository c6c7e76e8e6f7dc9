"""Bounds on one peer's cost to the broker and to others: floods, peers that do not read, garbage, goodbyes."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from journal.records.xid import LocalKey, XaKey, Xid
from meta_client.protocol.answers import parse_put_place
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get, Put, Quit, Stats, TransactionVerb, Version
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.peers import (
    MIB,
    PROMPT_S,
    anonymous_bytes,
    broker_with,
    read_to_the_end,
    send_until_stuck,
    wait_until_alone,
    worst_answer_s,
)
from tests.fixtures.replicas import wait_until
from tests.fixtures.wire import Refused, WireClient


def test_a_peer_that_does_not_read_costs_a_bounded_amount_and_stops_nobody(tmp_path: Path) -> None:
    with broker_with(tmp_path, unsent_bytes_max=256 * 1024) as broker, WireClient(broker.port) as client:
        for _ in range(16):
            client.put("orders", 0, bytes(512 * 1024))
        before = anonymous_bytes(broker.pid)
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", broker.port))
            get = encode_request(Get("orders", "g", 0, 0, MIB, 7))[0]
            taken = send_until_stuck(stalled, get * 1000, 1.0)
            assert taken > 100 * len(get)  # asked for a hundred times what may wait for it
            assert taken < 16 * MIB  # and then it was not read any more
            assert worst_answer_s(client, 1.0) < PROMPT_S
            assert anonymous_bytes(broker.pid) - before < 24 * MIB
            stalled.settimeout(60)
            received = bytearray()
            while len(received) < 3 * MIB:
                received += stalled.recv(65536)
            assert received.startswith(b"value 1048576 7\r\n")
            assert received.count(b"value 1048576 7\r\n") >= 3
        wait_until_alone(client)


def test_a_flood_of_small_answers_is_bounded_too(tmp_path: Path) -> None:
    with broker_with(tmp_path, unsent_bytes_max=64 * 1024) as broker, WireClient(broker.port) as client:
        before = anonymous_bytes(broker.pid)
        with socket.create_connection(("127.0.0.1", broker.port)) as stalled:
            taken = send_until_stuck(stalled, b"get nope g 0 0 1 1\r\n" * 10_000, 1.0)
            assert taken < 64 * MIB
            assert worst_answer_s(client, 0.5) < PROMPT_S
            assert anonymous_bytes(broker.pid) - before < 24 * MIB


def test_a_flood_of_heavy_requests_leaves_time_for_others(tmp_path: Path) -> None:
    config = CONFIG + "[topics.wide]\npartitions = 1500\n"
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port) as client,
    ):
        client.send(*(Put("wide", number, 0, None, None, number, b"x") for number in range(1500)))
        for _ in range(1500):
            client.receive()
        # A count, for how long anything takes varies; one or two, if the broker had been gone. Where the test stalls,
        # the next flood tells.
        assert any(answered_during_a_flood(broker, client) > 10 for _ in range(5))


def answered_during_a_flood(broker: BrokerProcess, client: WireClient) -> int:
    """Return how many requests of *client* are answered while another one's flood is.

    Short answers that cost much. One receive buffer holds all requests: without a bound on a connection's turn the
    broker would be gone for all of this time.
    """
    with socket.create_connection(("127.0.0.1", broker.port)) as flood:
        flood.sendall(encode_request(Stats("nope", 7))[0] * 6_000 + encode_request(Quit())[0])
        reader = threading.Thread(target=read_to_the_end, args=[flood])
        reader.start()
        answered = 0
        while reader.is_alive():
            client.ask(Version(client.opaque()))
            answered += 1
        reader.join()
        return answered


def test_a_pipelined_flood_of_puts_makes_progress_through_a_small_queue(tmp_path: Path) -> None:
    with broker_with(tmp_path, queued_bytes_max=4096) as broker:
        floods = [WireClient(broker.port) for _ in range(3)]
        count, body = 4_000, b"x" * 300

        def flood(number: int) -> None:
            floods[number].send(*(Put("orders", number, 0, None, None, n, body) for n in range(count)))

        threads = [threading.Thread(target=flood, args=[number]) for number in range(len(floods))]
        for thread in threads:
            thread.start()
        for client in floods:
            for number in range(count):
                answer = client.receive()
                assert isinstance(answer, Result)
                assert answer.opaque == number
                assert parse_put_place(answer.message).offset == number * (20 + len(body))
        for thread in threads:
            thread.join()
        for client in floods:
            client.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"quack\r\n",
        b"put orders\r\n",
        b"put orders 0 -1 0 -1 5\r\n",
        b"get orders g 0 0 99999999999 5\r\n",
        b"transaction TX:a:b s BEGIN 5\r\n",
        b"version \xff\r\n",
        b"x" * 9000,
        b"\x00" * 100 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_garbage_closes_the_connection_and_no_other(
    garbage: bytes, shared_lone_broker: BrokerProcess, own_topic: str
) -> None:
    with WireClient(shared_lone_broker.port) as client, WireClient(shared_lone_broker.port) as vandal:
        vandal.socket.sendall(garbage)
        with pytest.raises(ConnectionError):
            vandal.receive()
        assert client.put(own_topic, 0, b"still here").offset == 0
        wait_until_alone(client)


@pytest.mark.parametrize("goodbye", [b"quit\r\n", b"quack\r\n"])
def test_what_was_asked_before_a_goodbye_is_answered(
    goodbye: bytes, shared_lone_broker: BrokerProcess, own_topic: str
) -> None:
    with WireClient(shared_lone_broker.port) as client:
        puts = b"".join(b"put %b 0 1 0 -1 %d\r\nx" % (own_topic.encode(), n) for n in range(100))
        client.socket.sendall(puts + goodbye + b"put %b 0 1 0 -1 100\r\nx" % own_topic.encode())
        for number in range(100):
            answer = client.receive()
            assert isinstance(answer, Result)
            assert (answer.opaque, answer.status) == (number, 200)
        with pytest.raises(ConnectionError):
            client.receive()
    with WireClient(shared_lone_broker.port) as client:
        assert len(client.read_all(own_topic, 0)) == 100


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"get orders g 0 0 1000 1\r\n",
        b"fetch orders g 1 0 1000 1 30000 1\r\n",
        b"offset orders g 0 0 1\r\noffsets orders 0 1 2\r\n",
        b"version 1\r\nstats  2\r\ntopic show orders 3\r\n",
        b"sync orders 0 1 0 1 -1 1\r\nx",
        b"transaction TX:s:1 s BEGIN 1\r\nput orders 0 1 0 -1 TX:s:1 2\r\nxtransaction TX:s:1 s COMMIT_ONE_PHASE 3\r\n",
        b"transaction TX:s:1 s ROLLBACK 1\r\ntransaction null s RECOVER uq 2\r\n",
        b"put nope 0 1 0 -1 1\r\nxput orders 0 16777217 0 -1 2\r\n" + bytes(16777217),
    ],
)
def test_a_goodbye_waits_for_every_answer_and_for_nothing_else(asked: bytes, shared_lone_broker: BrokerProcess) -> None:
    with WireClient(shared_lone_broker.port) as client:
        client.put("orders", 0, b"hello")
        client.socket.sendall(asked + b"transaction TX:s:2 s END 9\r\nquit\r\n")  # END has no answer
        for _ in range(asked.count(b"\r\n")):
            client.receive()
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            client.receive()
        assert time.monotonic() - started < 20


def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    with broker_with(tmp_path, idle_seconds_max=5.0) as broker, WireClient(broker.port) as silent:
        with WireClient(broker.port) as client:
            wait_until_alone(client)  # it asks all the time
        with pytest.raises(ConnectionError):
            silent.receive()


def test_a_clean_stop_answers_who_listens_and_waits_for_nobody_else(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as holder, socket.socket() as stalled:
        client.put("orders", 0, bytes(MIB))
        key = LocalKey("s", 1)
        holder.verb(TransactionVerb.BEGIN, key)
        holder.put("orders", 1, b"never", key)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", lone_broker.port))
        send_until_stuck(stalled, encode_request(Get("orders", "g", 0, 0, MIB, 7))[0] * 1000, 0.5)
        assert lone_broker.stop() == 0
        for open_one in (client, holder):
            with pytest.raises(ConnectionError):
                open_one.receive()
    assert "Traceback" not in lone_broker.log, lone_broker.log
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        assert client.get("orders", 1, 0) == Result(404, b"The topic `orders` in partition `1` is not exists", 1)


def test_a_clean_stop_under_load_loses_nothing_it_acknowledged(lone_broker: BrokerProcess) -> None:
    acknowledged: list[bytes] = []

    def produce() -> None:
        with WireClient(lone_broker.port) as client, contextlib.suppress(ConnectionError):
            for number in range(1_000_000):
                body = b"%d" % number
                client.put("orders", 0, body)
                acknowledged.append(body)

    producer = threading.Thread(target=produce)
    producer.start()
    wait_until(lambda: len(acknowledged) > 100, "it is under load")
    assert lone_broker.stop() == 0
    producer.join()
    assert "Traceback" not in lone_broker.log, lone_broker.log
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        stored = [message.payload for _, message in client.read_all("orders", 0)]
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) <= len(acknowledged) + 1


@pytest.mark.scenario("U12")
def test_a_branch_over_too_many_partitions_is_refused_and_can_be_rolled_back(tmp_path: Path) -> None:
    config = """
        [broker]
        segment_bytes = 69632
        message_bytes_max = 4096
        [topics.wide]
        partitions = 3000
    """
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        for key in (XaKey(Xid.of("g", "b"), "uq"), LocalKey("s", 1)):
            client.verb(TransactionVerb.BEGIN, key)
            client.send(*(Put("wide", number, 0, None, key, number, b"x") for number in range(3000)))
            assert all(getattr(client.receive(), "status", None) == 200 for _ in range(3000))
            verbs = (TransactionVerb.PREPARE, TransactionVerb.COMMIT_ONE_PHASE)
            for verb in verbs if isinstance(key, XaKey) else verbs[1:]:
                with pytest.raises(Refused, match=r"XAException:code=-3,msg=a record of .* bytes does not fit"):
                    client.verb(verb, key)
            client.verb(TransactionVerb.ROLLBACK, key)
        client.put("wide", 2999, b"next")
        assert client.stats("wide")[4] == "message_count 1"


def test_the_largest_message_goes_in_and_comes_out(shared_lone_broker: BrokerProcess, own_topic: str) -> None:
    with WireClient(shared_lone_broker.port) as client:
        body = bytes(range(256)) * (2 * MIB // 256)
        client.put(own_topic, 0, body)
        with pytest.raises(Refused, match="a message of 2097153 bytes is larger than message_bytes_max 2097152"):
            client.put(own_topic, 0, body + b"x")
        value = client.get(own_topic, 0, 0, 4 * MIB)
        assert isinstance(value, Value)
        assert value.body[20:] == body
