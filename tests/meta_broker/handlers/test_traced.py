"""Sampled contexts in what a client puts; bytes that are none are passed over."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from journal.records.record import PartitionName
from journal.records.xid import BranchKey, XaKey, Xid
from journal.state.wall_clock import wall_clock_ms
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.handlers import traced
from meta_broker.handlers.context import Peer
from meta_broker.handlers.traced import Traced, WriteTraces, _sampled
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import MultiPut, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.trace_context import with_traceparent
from tests.fixtures.loops import in_loop

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-0"
SAMPLED, UNSAMPLED = TRACE + "1", TRACE + "0"


def put(attribute: str | None, flag: int | None = None) -> Put:
    found, body = encode_body(b"x", attribute)
    return Put("orders", 0, found if flag is None else flag, None, None, 1, body)


@pytest.mark.parametrize(
    ("attribute", "flag", "found"),
    [
        (with_traceparent("k", SAMPLED), None, [SAMPLED]),
        (with_traceparent("k", UNSAMPLED), None, []),
        (with_traceparent("k", SAMPLED), 0, []),
        ("traceparent", None, []),
        (None, None, []),
    ],
)
def test_of_one_message(attribute: str | None, flag: int | None, found: list[str]) -> None:
    assert list(_sampled(put(attribute, flag))) == found


def test_of_a_batch_whatever_its_bytes() -> None:
    messages = [put(with_traceparent("k", SAMPLED)), put(None), put(with_traceparent(None, UNSAMPLED))]
    frames = b"".join(encode_frame(0, one.flag, bytes(one.body)) for one in messages)
    for body in (frames, frames + b"\xff" * 30, frames[:-1]):
        assert list(_sampled(MultiPut("orders", 0, 3, 0, None, None, 1, body))) == [SAMPLED]


class Spans:
    """Keeps what the broker's hooks are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str | None, BranchKey | None]] = []

    def stored(
        self, name: str, parent: str, began_ns: int, broker_id: int, topic: str | None, key: BranchKey | None
    ) -> None:
        assert began_ns > 0
        assert broker_id == 0
        self.told.append((name, parent, topic, key))


@in_loop
async def test_spans_of_a_branch_belong_to_its_first_traced_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end with the acknowledgement. The oldest branch is forgotten where there are too many."""
    monkeypatch.setattr(traced, "BRANCHES_MAX", 1)
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0)
    store, spans = MessageStore.open(config, "test", lambda: None, wall_clock_ms), Spans()
    traces = WriteTraces(cast(Any, SimpleNamespace(store=store, config=config)), cast(Any, spans))

    def handle(request: Traced, peer: Peer) -> None:
        if not isinstance(request, TransactionCommand) or request.verb in stored:
            store.transactions.put(PartitionName("orders", 0), [b"x"], 1, 1)

    stored = {TransactionVerb.PREPARE, TransactionVerb.ROLLBACK}
    told = traces.wrap(handle)
    keys = [XaKey(Xid.of(name, "b"), "q") for name in ("first", "second")]
    peer = cast(Any, None)
    for key in keys:
        told(msgspec.structs.replace(put(with_traceparent("k", SAMPLED)), key=key), peer)
    told(put(None), peer)
    for key in keys:
        for verb in (TransactionVerb.BEGIN, TransactionVerb.PREPARE, TransactionVerb.ROLLBACK):
            told(TransactionCommand(key, "n", verb, None, "q", 1), peer)
    assert spans.told == []
    store.journal.wait_flushed(store.journal.end, 60)
    store.advance()
    await asyncio.sleep(0)
    assert spans.told == [
        ("store orders", SAMPLED, "orders", keys[0]),
        ("store orders", SAMPLED, "orders", keys[1]),
        ("prepare", SAMPLED, None, keys[1]),
        ("roll back", SAMPLED, None, keys[1]),
    ]
    store.close()
