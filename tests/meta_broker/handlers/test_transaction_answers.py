"""Answers to each verb of a branch, to the byte (spec 2.3; 13.4, U12)."""

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import TransactionCommand, TransactionVerb, Version
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient

IN_DOUBT = 10
QUALIFIER = "uq"


@pytest.mark.scenario("U12", "T05")
def test_every_verb_and_ten_branches_in_doubt(lone_broker: BrokerProcess) -> None:
    """BEGIN, COMMIT, ROLLBACK and FORGET say nothing, PREPARE its vote, END not a word, RECOVER a key a line."""
    keys = [XaKey(Xid.of(f"order-{number}", "mq"), QUALIFIER) for number in range(IN_DOUBT)]
    with WireClient(lone_broker.port) as client:

        def said(verb: TransactionVerb, key: XaKey | None) -> tuple[int, bytes]:
            answer = client.result(TransactionCommand(key, "s", verb, None, QUALIFIER, client.opaque()))
            return answer.status, answer.message

        assert said(TransactionVerb.RECOVER, None) == (200, b"")
        for key in keys:
            assert said(TransactionVerb.BEGIN, key) == (200, b"")
            client.put("orders", 0, b"x", key)
            client.send(TransactionCommand(key, "s", TransactionVerb.END, None, QUALIFIER, client.opaque()))
            assert client.result(Version(client.opaque())).message.startswith(b"1.4.6"), "END was answered"
            assert said(TransactionVerb.PREPARE, key) == (200, b"0")
        assert said(TransactionVerb.RECOVER, None) == (200, "\r\n".join(map(str, keys)).encode())
        for number, key in enumerate(keys):
            verb = TransactionVerb.ROLLBACK if number % 2 else TransactionVerb.COMMIT_TWO_PHASE
            assert said(verb, key) == (200, b"")
            assert said(TransactionVerb.FORGET, key) == (200, b"")
        assert said(TransactionVerb.RECOVER, None) == (200, b"")
        assert len(client.read_all("orders", 0)) == IN_DOUBT // 2
