"""branch show, where the messages it would show are not there yet."""

import json
from pathlib import Path

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import BranchCommand, BranchVerb, Put, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.broker import running_broker
from tests.fixtures.wire import WireClient

CONFIG = """
[broker]
segment_bytes = 1048576
message_bytes_max = 983040

[topics.orders]
"""
BRANCH = XaKey(Xid.of("g", "b"), "uq")


def test_a_put_of_this_moment_is_counted_and_not_read(tmp_path: Path) -> None:
    """The put goes to a segment the writer has not made yet."""
    with running_broker(tmp_path / "broker", None, config=CONFIG) as broker, WireClient(broker.port) as client:
        client.verb(TransactionVerb.BEGIN, BRANCH)
        client.put("orders", 0, b"1" * 980_000, BRANCH)
        client.put("orders", 0, b"2" * 60_000, BRANCH)
        show = BranchCommand(BranchVerb.SHOW, BRANCH, "", "", client.opaque())
        client.send(Put("orders", 0, 0, None, BRANCH, client.opaque(), b"3" * 20_000), show)
        put, shown = client.receive(), client.receive()
        assert isinstance(put, Result)
        assert put.is_success
        assert isinstance(shown, Result)
        assert shown.is_success, shown.text
        report = json.loads(shown.message)
        assert report["messages"] == 3
        report = json.loads(client.result(show).message)
        assert [message["payload"][0] for message in report["first_messages"]] == ["1", "2", "3"]
