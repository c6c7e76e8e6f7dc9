"""A codec is used if every broker of a topic allows it, as far as is known; and what is known grows old."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from meta_client.metadata import allowed_codecs
from meta_client.metadata.allowed_codecs import AllowedCodecs
from meta_client.metadata.topology import TopicView
from meta_client.net.connections import Connections
from meta_client.protocol.compression import Codec
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Request, TopicCommand, Version
from meta_client.protocol.status import Status
from tests.meta_client.peer import HANG_UP, Peer


class Broker:
    def __init__(self, version: bytes = b"1.4.6 metaq/1 compression") -> None:
        self.version = version
        self.allowed: bytes | None = b"lz4,zstd,unheard-of"
        self.asked = threading.Semaphore(0)

    def __call__(self, request: Request) -> bytes:
        if isinstance(request, Version):
            return encode_result(Status.SUCCESS, self.version, request.opaque)
        assert isinstance(request, TopicCommand)
        self.asked.release()
        if self.allowed is None:
            return HANG_UP
        return encode_result(Status.SUCCESS, b"topic orders compression=" + self.allowed, request.opaque)


@pytest.fixture
def connections() -> Iterator[Connections]:
    with closing(Connections()) as found:
        yield found


def test_every_broker_must_allow_it(connections: Connections) -> None:
    one, other, genuine = Broker(), Broker(), Broker(b"1.4.6")
    other.allowed = b"zstd"
    with closing(Peer(one)) as first, closing(Peer(other)) as second, closing(Peer(genuine)) as third:
        codecs = AllowedCodecs(connections)

        def allowed(*peers: Peer) -> set[Codec]:
            view = TopicView("orders", urls={number: peer.url for number, peer in enumerate(peers)})
            return {codec for codec in (Codec.LZ4, Codec.ZSTD) if codecs.allows(view, codec)}

        assert allowed() == set()
        assert allowed(first) == {Codec.LZ4, Codec.ZSTD}
        assert allowed(first, second) == {Codec.ZSTD}
        assert allowed(first, second, third) == set(), "one knows no codecs"
        assert one.asked.acquire(timeout=60)
        assert not one.asked.acquire(blocking=False), "what is known is not asked for again"


def test_another_broker_at_the_address_of_one_that_died_does_not_answer_for_it(connections: Connections) -> None:
    heir = Broker(b"1.4.6 metaq/1 compression broker-1")
    with closing(Peer(heir)) as peer:
        codecs = AllowedCodecs(connections)
        assert not codecs.allows(TopicView("orders", urls={0: peer.url}), Codec.LZ4)
        assert not heir.asked.acquire(blocking=False)
        assert codecs.allows(TopicView("orders", urls={1: peer.url}), Codec.LZ4)
        assert not codecs.allows(TopicView("orders", urls={0: peer.url, 1: peer.url}), Codec.LZ4)


def test_what_is_known_is_asked_for_again_without_waiting(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed_codecs, "REFRESH_S", 0.0)
    broker = Broker()
    with closing(Peer(broker)) as peer:
        view, codecs = TopicView("orders", urls={0: peer.url}), AllowedCodecs(connections)
        assert codecs.allows(view, Codec.LZ4)
        for broker.allowed in (b"none", b"lz4", None):
            deadline = time.monotonic() + 60
            while codecs.allows(view, Codec.LZ4) != (broker.allowed == b"lz4"):
                assert time.monotonic() < deadline
                time.sleep(0.01)
