"""Topics and messages on pages."""

import html
import re
from datetime import UTC, datetime

import pytest
from starlette.testclient import TestClient

from meta_client.console import groups_page, messages
from meta_client.console.reads import Reads
from meta_client.console.rendering import path
from tests.meta_client.console.conftest import ATTRIBUTE, PAYLOAD, SCRIPT, Stack

OFFSET = re.compile(r"/topics/orders/(\d+-\d+)/(\d+)\"")
NEXT = re.compile(r'href="([^"]*)" rel="next"')


def offsets(text: str) -> list[tuple[str, str]]:
    return OFFSET.findall(text)


def test_topics_and_partitions(browser: TestClient, stack: Stack) -> None:
    text = browser.get("/topics").text
    assert "0-m" in text
    assert "bills" in text
    assert html.escape(SCRIPT) in text
    assert SCRIPT not in text
    topic = browser.get("/topics/orders").text
    assert topic.count(">first</a>") == 4
    hostile = browser.get(path("topics", SCRIPT))
    assert (hostile.status_code, SCRIPT in hostile.text) == (200, False)
    assert browser.get("/topics/nope").status_code == 200
    assert browser.get("/topics/%00").status_code == 404


def test_pages_of_messages_from_the_beginning_and_from_the_end(browser: TestClient) -> None:
    first = browser.get("/topics/orders/messages?partition=0-0")
    assert len(offsets(first.text)) == 50
    seen = [offset for _, offset in offsets(first.text)]
    text = first.text
    while match := NEXT.search(text):
        text = browser.get(html.unescape(match[1])).text
        seen += [offset for _, offset in offsets(text)]
    assert len(seen) == len(set(seen)) >= 150
    last = [offset for _, offset in offsets(browser.get("/topics/orders/messages?partition=0-0&at=latest").text)]
    assert last == seen[-50:]
    inside = browser.get(f"/topics/orders/messages?partition=0-0&at={int(seen[3]) + 1}").text
    assert offsets(inside)[0] == ("0-0", seen[3])


def test_what_a_broker_that_is_away_has_was_not_searched(browser: TestClient, stack: Stack) -> None:
    with stack.zookeeper_client() as zk:
        zk.create("/meta/brokers/ids/9")  # as it stays when a broker goes
    try:
        text = browser.get("/topics/orders/messages?key=of-nine").text
        one = browser.get("/topics/orders/messages?key=of-nine&partition=0-0").text
        others = [browser.get(page).text for page in ("/groups", "/topics", "/topics/orders")]
    finally:
        stack.forget_silent(9)
    assert all("broker 9 has no master" in text for text in others), "which groups have not met"
    assert "orders/9-* was not searched: broker 9 has no master" in text
    assert "No such message in the partitions that were searched" in text
    assert "No such message." in one


def test_by_key_id_and_time(browser: TestClient) -> None:
    found = browser.get("/topics/orders/messages?key=key-77").text
    ((partition, offset),) = offsets(found)
    message = browser.get(f"/topics/orders/{partition}/{offset}").text
    assert '"order": 77' in html.unescape(message)
    message_id = re.search(r"<dt>id</dt><dd class=\"mono\">(\d+)", message)
    assert message_id is not None
    assert offsets(browser.get(f"/topics/orders/messages?id={message_id[1]}").text) == [(partition, offset)]
    assert "No such message" in browser.get("/topics/orders/messages?key=nope").text
    later = datetime(2100, 1, 1, tzinfo=UTC).isoformat()
    assert "Nothing there" in browser.get("/topics/orders/messages", params={"partition": "0-0", "at": later}).text
    for query in ("partition=9-9", "at=yesterday", "id=x", f"key={'x' * 3000}"):
        assert browser.get(f"/topics/orders/messages?{query}").status_code == 400


def test_a_hostile_message_is_text(browser: TestClient) -> None:
    listed = browser.get("/topics/orders/messages?partition=0-1").text
    ((partition, offset),) = offsets(listed)
    for form in ("text", "json", "hex"):
        message = browser.get(f"/topics/orders/{partition}/{offset}?as={form}").text
        for raw in (ATTRIBUTE, PAYLOAD.decode(), "<img", "<script>alert"):
            assert raw not in message
            assert raw not in listed
    assert PAYLOAD.decode() in html.unescape(browser.get(f"/topics/orders/{partition}/{offset}?as=text").text)
    assert browser.get(f"/topics/orders/{partition}/{offset}?as=exe").status_code == 400


def test_a_large_binary_message_is_bounded(browser: TestClient) -> None:
    ((partition, offset),) = offsets(browser.get("/topics/orders/messages?partition=0-2").text)
    text = browser.get(f"/topics/orders/{partition}/{offset}").text
    assert "00 01 02 03" in text
    assert "more bytes are not shown" in text
    assert len(text) < 200_000


def test_what_is_no_message(browser: TestClient) -> None:
    for place in (
        "/topics/orders/0-0/1",
        "/topics/orders/0-0/999999999",
        "/topics/orders/x/0",
        "/topics/orders/0-0/-1",
        "/topics/orders/0-0/\u0663",
    ):
        assert browser.get(place).status_code == 404
    assert "has no master" in browser.get("/topics/orders/77-0/0").text


def test_what_takes_too_long_is_unknown(stack: Stack, hurried: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_page, "LIST_S", 0.0)
    assert "no answer in 0 s" in html.unescape(hurried.get("/groups").text)
    ask = Reads.call
    late = ("away", "search", "ranges")
    monkeypatch.setattr(
        Reads, "call", lambda self, key, call, limit_s=60.0: ask(self, key, call, 0.0 if key[0] in late else limit_s)
    )
    assert hurried.get("/topics/orders/messages?key=key-1").text.count("no answer in 0 s") >= 2
    assert "no answer in 0 s" in hurried.get("/topics/orders").text
    monkeypatch.setattr(groups_page, "LIST_S", 60.0)
    assert "broker *: no answer in 0 s" in hurried.get("/groups").text


def test_a_long_run_is_not_read_backwards(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LOOKED_AT_MAX", 1)
    text = html.unescape(browser.get("/topics/orders/messages?partition=0-0&at=latest").text)
    assert "can't be read backwards" in text
