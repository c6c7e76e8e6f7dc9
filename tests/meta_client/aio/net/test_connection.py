"""An event loop's connection against a peer that answers out of order, late, wrongly, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from meta_client.aio.bridge.bridge import run
from meta_client.aio.net.connection import Connection
from meta_client.aio.net.connections import Connections
from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.net import pending_reply
from meta_client.net.opaques import next_opaque
from meta_client.protocol.requests import Put, Request, Version
from meta_client.protocol.responses import Response, Result
from tests.fixtures.loops import in_loop, until
from tests.meta_client.peer import HANG_UP, Peer, listening, ok, opaque_of


def silent(request: Request) -> None:
    del request


def put(body: bytes = b"hello", opaque: int | None = None) -> Put:
    return Put("meta-test", 0, 0, None, None, next_opaque() if opaque is None else opaque, body)


async def ask(connection: Connection, request: Request, timeout_s: float = 60) -> Response:
    return await run(connection.submit(request).wait, timeout_s)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with listening(ok) as it:
        yield it


@asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[Connection]:
    connection = await Connection.open(peer.url, 60)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


@in_loop
async def test_the_trace_of_a_plain_put(peer: Peer) -> None:
    peer.handler = lambda request: ok(request, b"100000 0 0")
    async with connected(peer) as connection:
        assert await ask(connection, put(opaque=-(2**31))) == Result(200, b"100000 0 0", -(2**31))
    assert peer.received == [Put("meta-test", 0, 0, None, None, -(2**31), b"hello")]


@in_loop
async def test_answers_in_any_order_find_the_tasks_that_wait(peer: Peer) -> None:
    held: list[bytes] = []

    def answer_all_backwards(request: Request) -> bytes | None:
        assert isinstance(request, Put)
        held.append(ok(request, bytes(request.body)))
        return b"".join(reversed(held)) if len(held) == 100 else None

    peer.handler = answer_all_backwards
    async with connected(peer) as connection:
        responses = await asyncio.gather(*(ask(connection, put(b"%d" % number)) for number in range(100)))
    assert [response.message for response in responses if isinstance(response, Result)] == [
        b"%d" % number for number in range(100)
    ]


@in_loop
async def test_threads_wait_for_answers_too(peer: Peer) -> None:
    """A thread's wait ends with the answer, by its time limit, or when the connection breaks."""
    peer.handler = lambda request: ok(request, b"1") if isinstance(request, Put) and request.body == b"answer" else None
    async with connected(peer) as connection:
        answered, silent, broken = (connection.submit(put(body)) for body in (b"answer", b"none", b"none"))
        response = await asyncio.to_thread(answered.wait, 60)
        assert isinstance(response, Result)
        assert response.message == b"1"
        with pytest.raises(ReplyTimeout):
            await asyncio.to_thread(silent.wait, 0.05)
        waiting = asyncio.create_task(asyncio.to_thread(broken.wait, 60))
        await asyncio.sleep(0.05)
        peer.hang_up()
        with pytest.raises(ConnectionLost):
            await waiting


@in_loop
async def test_a_break_fails_everything_pending_at_once(peer: Peer) -> None:
    peer.handler = silent
    async with connected(peer) as connection:
        waiting = [asyncio.create_task(ask(connection, put())) for _ in range(3)]
        await asyncio.sleep(0.05)
        peer.hang_up()
        for task in waiting:
            with pytest.raises(ConnectionLost, match=r"meta://127\.0\.0\.1:\d+ lost before the answer .*may have act"):
                await task
        assert connection.is_broken
        with pytest.raises(NotConnected, match="try again for a new one"):
            connection.submit(put())


@in_loop
async def test_what_came_before_garbage_counts(peer: Peer) -> None:
    peer.handler = lambda request: ok(request, b"fine") + b"gibberish\r\n"
    async with connected(peer) as connection:
        good = connection.submit(put())
        assert await run(good.wait, 60) == Result(200, b"fine", good.opaque)
        await until(lambda: connection.is_broken)
        with pytest.raises(NotConnected, match="gibberish"):
            connection.submit(put())


@in_loop
async def test_a_timeout_gives_the_request_up_and_drops_its_late_answer(peer: Peer) -> None:
    peer.handler = silent
    async with connected(peer) as connection:
        late = connection.submit(put())
        with pytest.raises(ReplyTimeout, match=r"within 0\.02 s: the request may have acted"):
            await run(late.wait, 0.02)
        peer.send(ok(put(opaque=late.opaque)))
        peer.send(b"result 200 0 123456\r\n")  # nobody's
        peer.handler = ok
        assert isinstance(await ask(connection, put()), Result)
        with pytest.raises(ReplyTimeout):
            await run(late.wait, 0.02)


@in_loop
async def test_a_cancelled_task_harms_nobody(peer: Peer) -> None:
    peer.handler = silent
    async with connected(peer) as connection:
        reply = connection.submit(put())
        task = asyncio.create_task(run(reply.wait, 60))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        peer.send(ok(put(opaque=reply.opaque)))
        assert isinstance(await run(reply.wait, 60), Result)


@in_loop
async def test_close_fails_what_is_pending(peer: Peer) -> None:
    peer.handler = silent
    async with connected(peer) as connection:
        reply = connection.submit(put())
        connection.close()
        connection.close()
        with pytest.raises(ConnectionLost, match="closed by this client") as caught:
            await run(reply.wait, 60)
        assert isinstance(caught.value.__cause__, ClientClosed)


@in_loop
async def test_outstanding_requests_are_bounded(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_reply, "OUTSTANDING_MAX", 2)
    peer.handler = silent
    async with connected(peer) as connection:
        connection.submit_all([put(), put()])
        with pytest.raises(TooManyRequests, match="2 answers are due"):
            connection.submit(put())


@in_loop
async def test_an_idle_connection_beats_and_a_silent_peer_is_given_up(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.net.heartbeat.IDLE_S", 0.05)
    monkeypatch.setattr("meta_client.net.heartbeat.ANSWER_S", 0.3)  # three in a row are late on no machine
    async with connected(peer) as connection:
        await until(lambda: len(peer.received) >= 5)  # answered: it goes on
        assert not connection.is_broken
        assert all(isinstance(request, Version) for request in peer.received)
        peer.handler = silent
        with pytest.raises(ConnectionLost, match="no good answer to three heartbeats"):
            await ask(connection, put())


@in_loop
async def test_bad_answers_to_heart_beats_count(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta_client.net.heartbeat.IDLE_S", 0.02)
    monkeypatch.setattr("meta_client.net.heartbeat.ANSWER_S", 0.5)  # the next look is no earlier
    peer.handler = lambda request: b"result 500 0 %d\r\n" % opaque_of(request)
    async with connected(peer) as connection:
        await until(lambda: connection.is_broken)
    await until(lambda: len(peer.received) == 3)


@in_loop
async def test_the_pool_makes_one_a_broker_and_another_after_a_break(peer: Peer) -> None:
    pool = Connections()
    first, same = await asyncio.gather(pool.connect(peer.url, 60), pool.connect(peer.url, 60))
    assert first is same is await run(pool.get, peer.url, 60)
    await until(lambda: peer.accepted > 0)
    assert peer.accepted == 1
    peer.hang_up()
    await until(lambda: first.is_broken)
    second = await pool.connect(peer.url, 60)
    assert second is not first
    await pool.close()
    with pytest.raises(ClientClosed):
        await pool.connect(peer.url, 60)


@in_loop
async def test_nobody_listens_and_the_impatient_do_not_wait(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta_client.net.backoff.backoff_after_s", lambda failures: 600.0 if failures > 1 else 0.0)
    url = peer.url
    peer.close()
    pool = Connections()
    for _ in range(2):
        with pytest.raises(NotConnected, match=r"no connection to meta://127.0.0.1:\d+.*is the broker up"):
            await pool.connect(url, 60, patient=False)
    with pytest.raises(NotConnected, match="after 2 attempts"):
        await pool.connect(url, 3600, patient=False)
    await pool.close()


@in_loop
async def test_a_peer_that_hangs_up_on_a_request(peer: Peer) -> None:
    peer.handler = lambda request: HANG_UP
    async with connected(peer) as connection:
        with pytest.raises(ConnectionLost):
            await ask(connection, put())
