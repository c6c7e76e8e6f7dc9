"""Groups, the plan of a reset, and dead letters on pages."""

import html
import json
import re
from pathlib import Path

from starlette.testclient import TestClient

from meta_client.console.rendering import path
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.meta_client.console.conftest import ATTRIBUTE, HIDDEN, ORIGIN, PAYLOAD, SCRIPT, Stack, open_console
from zk.groups.listing import list_group
from zk.tree.nodes import Partition

SILENT = 8


def test_lag_owners_and_hostile_names(browser: TestClient) -> None:
    text = browser.get("/groups").text
    assert "billing" in text
    assert SCRIPT not in text
    group = html.unescape(browser.get("/groups/billing").text)
    assert f"{SCRIPT}-owner" in group
    assert "no-offset" in group
    assert re.search(r"<dt>messages</dt><dd>[1-9][0-9]*</dd>", group)
    assert "nobody" in group
    hostile = browser.get(path("groups", SCRIPT))
    assert (hostile.status_code, SCRIPT in hostile.text) == (200, False)
    assert browser.get("/groups/nope").status_code == 404


def test_the_stream_has_samples_for_the_chart(browser: TestClient) -> None:
    with browser.stream("GET", "/groups/billing", headers={"accept": "text/event-stream"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: sample"
        sample = json.loads(next(lines).removeprefix("data: "))
    assert sample["chart"] == "lag"
    assert sample["values"]["orders"] > 0


def test_a_lag_that_nobody_can_tell_is_unknown(stack: Stack, hurried: TestClient) -> None:
    stack.register_silent(SILENT)
    with stack.zookeeper_client() as zk:
        zk.create(f"/meta/consumers/billing/offsets/orders/{SILENT}-0", b"0-0", makepath=True)
    try:
        text = html.unescape(hurried.get("/groups/billing").text)
        assert f"broker {SILENT}: " in text
        assert ">unknown</span>" in text
        assert "stored" in text
    finally:
        stack.forget_silent(SILENT)
        with stack.zookeeper_client() as zk:
            zk.delete(f"/meta/consumers/billing/offsets/orders/{SILENT}-0")


def test_a_plan_is_the_commands_and_changes_nothing(browser: TestClient) -> None:
    before = browser.get("/groups/billing").text
    plan = html.unescape(browser.get("/groups/billing/reset", params={"to": "latest", "where": "orders/0-0"}).text)
    assert "nothing was changed" in plan
    assert "metaq groups reset billing orders/0-0 --to latest --yes" in plan
    stored = before.count(">stored</span>")
    assert stored >= 1
    assert browser.get("/groups/billing").text.count(">stored</span>") == stored
    for to, status in (("+3", 200), ("-2", 200), ("2010-12-05T10:00", 200), ("group:nope", 200), ("sideways", 400)):
        answer = browser.get("/groups/billing/reset", params={"to": to, "where": "orders/0-0"})
        assert answer.status_code == status, to
    refused = browser.get("/groups/billing/reset", params={"to": "5"}).text
    assert "is for one partition" in refused


def test_a_reset_is_carried_out_if_it_is_what_was_confirmed(changing: TestClient, stack: Stack) -> None:
    place, where = "/groups/billing-2/reset", "orders/0-0"
    page = changing.get(place, params={"to": "+3", "where": where})
    assert "could be shifted" in page.text
    text = changing.get(place, params={"to": "latest", "where": where}).text
    form = {name: html.unescape(value) for name, value in HIDDEN.findall(text)}
    headers = {"origin": ORIGIN}
    assert changing.post(place, data=form | {"csrf": "x"}, headers=headers).status_code == 403
    assert changing.post(place, data=form | {"seen": "x"}, headers=headers).status_code == 409
    assert changing.post(place, data=form | {"to": "file:/etc/passwd"}, headers=headers).status_code == 400
    done = changing.post(place, data=form, headers=headers)
    assert (done.status_code, "Done" in done.text) == (200, True)
    assert "is not where it was" in changing.post(place, data=form, headers=headers).text
    assert list_group(stack.client.session, "billing-2").progress[0].stored is not None
    with open_console(stack.settings()) as reading:
        assert '<form method="post"' not in reading.get(place, params={"to": "latest", "where": where}).text
        assert reading.post(place, data=form, headers=headers).status_code == 403


def test_a_group_with_a_member_alive_is_not_reset(changing: TestClient, stack: Stack) -> None:
    with stack.zookeeper_client() as zk:
        zk.create("/meta/consumers/billing/ids/billing_host-1", b"orders", makepath=True)
    try:
        text = changing.get("/groups/billing/reset", params={"to": "latest"}).text
        assert "members alive" in text
        form = {name: html.unescape(value) for name, value in HIDDEN.findall(text)}
        refused = changing.post("/groups/billing/reset", data=form, headers={"origin": ORIGIN})
        assert (refused.status_code, "has members alive" in refused.text) == (409, True)
    finally:
        with stack.zookeeper_client() as zk:
            zk.delete("/meta/consumers/billing/ids/billing_host-1")


def test_a_plan_reads_no_file_of_the_server(browser: TestClient, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("{}")
    answers = [
        browser.get("/groups/billing/reset", params={"to": f"file:{tmp_path}/{name}"}) for name in ("there", "not")
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].text == answers[1].text
    assert browser.get("/groups/billing/reset", params={"to": "-500000"}).status_code == 400


def test_dead_letters_of_named_directories(stack: Stack, tmp_path: Path) -> None:
    with open_console(stack.settings()) as client:
        assert "--dead-letters DIR" in client.get("/dead-letters").text
    with open_console(stack.settings(dead_letters=(tmp_path,))) as client:
        text = client.get("/dead-letters").text
        assert "holds no journal, and no dead letters" in text
        assert "unknown" in text


def test_dead_letters_are_texts(stack: Stack, tmp_path: Path) -> None:
    store = DeadLetterStore.open(tmp_path, "billing")
    message = ReceivedMessage("orders", Partition(0, 3), 96, 1, 0, ATTRIBUTE, PAYLOAD, 128)
    store.add(message, ValueError("<script>alert('why')</script>"))
    store.close()
    with open_console(stack.settings(dead_letters=(tmp_path,))) as client:
        raw = client.get("/dead-letters").text
    text = html.unescape(raw)
    assert "orders/0-3@96" in text
    assert "<script>alert('why')</script>" in text
    assert f"metaq groups dead-letters resend {tmp_path} --all" in text
    assert not any(hostile in raw for hostile in ("<script>alert", "<b onmouse", "<img"))
