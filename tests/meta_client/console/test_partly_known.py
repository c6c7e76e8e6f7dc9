"""Pages of which a part is missing: what is not known is said, and the rest is shown."""

import asyncio
import html
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from journal.records.states import XaCode
from journal.records.xid import XaKey, Xid
from meta_client import Client
from meta_client.console import live, reads
from meta_client.console.access import AccessRules, Guard, hosts_of
from meta_client.console.in_doubt import BranchFacts
from meta_client.console.reads import Reads, Unknown
from meta_client.console.rendering import UNKNOWN, rate
from meta_client.console.settings import ConsoleSettings
from meta_client.console.transactions_page import _history
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, OffsetQuery, Request, TransactionCommand, Version
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure
from tests.meta_client.console.conftest import open_console
from tests.meta_client.peer import Peer
from zk.embedded.chroot import Chroot
from zk.tree.nodes import BrokerName, TopicNode

KEY, OTHER = XaKey(Xid.of("t", "b"), "q"), XaKey(Xid.of("t", "c"), "q")
AWAY, STRANGE = 17, 18  # brokers: one that is not up, one of another make


def strange(request: Request) -> bytes:
    """Answer as a broker that knows no times; of its one branch, what no broker says."""
    match request:
        case Version():
            return encode_result(Status.SUCCESS, b"1.4.6 metaq/1 branch", request.opaque)
        case OffsetQuery():
            return encode_result(Status.SUCCESS, b"0", request.opaque)
        case TransactionCommand():
            return encode_result(Status.SUCCESS, str(KEY).encode(), request.opaque)
        case BranchCommand(key=key) if key == KEY:
            return encode_result(
                Status.SUCCESS, b'{"key": "?", "state": "prepared", "messages": 1, "bytes": 1}', request.opaque
            )
        case BranchCommand():
            failure = format_xa_failure(XaCode.XAER_RMFAIL, "no slave has it")
            return encode_result(Status.INTERNAL_ERROR, failure.encode(), request.opaque)
    raise AssertionError(request)


@pytest.fixture
def pages(zookeeper: Chroot, patient: None) -> Iterator[TestClient]:
    """A console of brokers that are none of ours, each with a topic; a group reads them."""
    with Client(zookeeper.connect) as client, closing(Peer(strange)) as peer:
        session = client.session
        for broker_id, topic in ((AWAY, "gone"), (STRANGE, "plain")):
            name = BrokerName(broker_id)
            for kind in ("topics-pub", "topics-sub"):
                session.write(f"/meta/brokers/{kind}/{topic}/{name}", TopicNode(1, name).encode())
            session.write(f"/meta/consumers/partly/offsets/{topic}/{broker_id}-0", b"0-0")
        session.write("/meta/brokers/topics-sub/empty", b"")
        session.write(f"/meta/brokers/ids/{STRANGE}/master", str(peer.url).encode())
        with open_console(ConsoleSettings(client=client, who="ann")) as browser:
            yield browser


def text_of(client: TestClient, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/groups/partly", f"broker {AWAY}"),
        ("/topics/gone", f"broker {AWAY}"),
        ("/topics/gone/messages?partition=17-0", "has no master in ZooKeeper"),
        ("/topics/gone/messages?key=k", "its broker is not up"),
        ("/topics/plain/messages?partition=18-0&at=2020-01-01", "knows nothing of times"),
        ("/topics/empty/messages", "empty"),
        ("/groups/partly/reset", "partly"),
        ("/transactions", f"broker {STRANGE}"),
        (f"/transactions/branch?broker={STRANGE}&key={KEY}", "does not read"),
        (f"/transactions/branch?broker={STRANGE}&key={OTHER}", "no slave has it"),
    ],
)
def test_what_is_missing_is_said(pages: TestClient, path: str, said: str) -> None:
    assert said in text_of(pages, path)


def test_what_can_be_no_name_is_not_here(pages: TestClient) -> None:
    assert "no such form" in text_of(pages, "/groups/a%00b", 404)


def test_a_stream_ends_after_a_while(pages: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAM_S_MAX", 0.0)
    answer = pages.get("/", headers={"accept": "text/event-stream"})
    assert (answer.headers["content-type"].split(";")[0], answer.text) == ("text/event-stream", "")


def test_a_branch_with_a_finding_is_told_with_it() -> None:
    report = {"state": "prepared"}
    finding = {"who": "ann", "why": "w", "evidence": "e", "time_ms": 7}
    found = BranchFacts(0, KEY, report, None, {"finding": finding})
    assert [what for _, _, what in _history(found)["history"]] == ["found by ann: w (e)"]
    assert report == {"state": "prepared"}


def test_a_rate_that_is_unknown_says_so() -> None:
    assert rate(Unknown("why")) == UNKNOWN


def test_a_socket_of_the_web_gets_no_answer() -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    rules = AccessRules("token", hosts_of("127.0.0.1", 1), 1)
    asyncio.run(Guard(nothing, rules)({"type": "websocket", "headers": []}, receive, send))


def test_what_waits_for_a_thread_ends_with_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "THREADS_MAX", 1)
    may_end = threading.Event()

    async def story() -> None:
        asking = Reads()
        first = asyncio.ensure_future(asking.call("a", lambda: may_end.wait(60)))
        second = asyncio.ensure_future(asking.call("b", lambda: True))
        await asyncio.sleep(0)
        asking.close()
        may_end.set()
        assert await first is True
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(story())
