"""Transactions on pages: what each side says, the verdict, and the changes, against real brokers and PostgreSQL."""

import html
import re
from urllib.parse import parse_qs, urlencode, urlparse

from starlette.testclient import TestClient

from journal.records.xid import XaKey, Xid
from meta_client.console.access import CSRF_FIELD
from meta_client.console.changes import carry_out
from meta_client.console.diagnosis import NOT_THE_SAME, diagnose
from meta_client.console.reads import Unknown
from meta_client.console.rendering import count
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.requests import BranchVerb, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.wire import WireClient
from tests.meta_client.console.conftest import ATTRIBUTE, FOREIGN, HIDDEN, ORIGIN, PAYLOAD, Stack, open_console

BRANCH = re.compile(r'href="(/transactions/branch\?[^"]*)"')
CHANGE = re.compile(r'href="(/transactions/change\?[^"]*)"')
FOREIGN_KEY = XaKey(FOREIGN, "<u>shop</u>")


def links(pattern: re.Pattern[str], text: str) -> list[str]:
    return [html.unescape(link) for link in pattern.findall(text)]


def branches(client: TestClient) -> dict[str, str]:
    """Path of each branch in doubt, by its key."""
    found = links(BRANCH, client.get("/transactions").text.partition("ledger-title")[0])
    return {parse_qs(urlparse(link).query)["key"][0]: link for link in found}


def verdict_of(client: TestClient, branch: str) -> str:
    return client.get(branch.replace("/branch?", "/verdict?"), headers={"hx-request": "true"}).text


def our_branch(client: TestClient, verdict: str) -> str:
    """Path of the branch of a crashed service with this verdict."""
    return next(
        link
        for key, link in branches(client).items()
        if key != str(FOREIGN_KEY) and f">{verdict}</span>" in verdict_of(client, link)
    )


def confirmed(client: TestClient, path: str, **more: str) -> dict[str, str]:
    """The form of a page that confirms a change."""
    text = client.get(path).text
    return {name: html.unescape(value) for name, value in HIDDEN.findall(text)} | more


def post(client: TestClient, form: dict[str, str], status: int = 200) -> str:
    answer = client.post("/transactions/change", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


def test_lists_say_who_decides_and_hostile_texts_stay_texts(browser: TestClient) -> None:
    text = browser.get("/transactions").text
    assert "another transaction manager" in text
    assert "decision table" in text
    by_owner = browser.get("/transactions?by=coordinator").text
    assert len(links(BRANCH, by_owner)) == len(links(BRANCH, text)) >= 3
    branch = branches(browser)[str(FOREIGN_KEY)]
    shown = browser.get(branch).text
    assert "prepared: since then it is in doubt" in shown
    assert html.escape(ATTRIBUTE) in shown.replace("&#39;", "'")
    assert html.escape(PAYLOAD.decode(), quote=False)[:60] in shown.replace("&#39;", "'")
    for page in (text, shown, verdict_of(browser, branch)):
        for raw in ("<u>shop", "<b onmouse", "<script>alert", "<i>order"):
            assert raw not in page


def test_the_verdict_is_the_doctors_with_reason_and_command(browser: TestClient, stack: Stack) -> None:
    foreign = html.unescape(verdict_of(browser, branches(browser)[str(FOREIGN_KEY)]))
    assert "a transaction manager other than metaq's began it, which alone knows" in foreign
    assert "metaq txn rollback 'XID:1:" in foreign
    assert "rollback loses messages whose rows may be" in foreign
    decided = html.unescape(verdict_of(browser, our_branch(browser, "commit")))
    assert "says commit" in decided
    assert "metaq txn doctor --database" in decided
    assert "Do what is certain" not in decided
    assert stack.deciding.url not in browser.get("/transactions/diagnosis").text


def test_a_side_that_cannot_be_asked_is_unknown(stack: Stack, browser: TestClient) -> None:
    branch = our_branch(browser, "commit")
    blind = stack.settings(databases=())
    with open_console(blind) as client:
        text = html.unescape(verdict_of(client, branch))
    assert "no database that answered has decision table" in text
    assert ">commit</span>" not in text


def test_a_read_only_console_shows_the_dry_text_and_refuses_the_form(browser: TestClient) -> None:
    branch = branches(browser)[str(FOREIGN_KEY)]
    text = browser.get(branch.replace("/branch?", "/change?do=rollback&")).text
    assert "Its messages are never seen" in text
    assert "<form" not in text
    answer = browser.post("/transactions/change", data={"do": "rollback"}, headers={"origin": ORIGIN})
    assert answer.status_code == 403


def test_a_change_wants_the_forms_secret_and_what_was_seen(changing: TestClient, stack: Stack) -> None:
    branch = branches(changing)[str(FOREIGN_KEY)]
    form = confirmed(changing, branch.replace("/branch?", "/change?do=rollback&"), why="no row")
    for field, value in ((CSRF_FIELD, "x"), (CSRF_FIELD, "")):
        post(changing, form | {field: value}, 403)
    assert "not as it was" in post(changing, form | {"seen": "x"}, 409)
    assert "a reason is needed" in post(changing, form | {"why": " "}, 409)
    assert "longer than" in post(changing, form | {"why": "x" * 5000}, 409)
    post(changing, form | {"why": "x" * 20_000}, 413)
    post(changing, form | {"do": "drop"}, 400)
    post(changing, form | {"key": "XID:nonsense"}, 400)
    json = changing.post("/transactions/change", json=form, headers={"origin": ORIGIN})
    assert json.status_code == 415
    assert str(FOREIGN_KEY) in branches(changing)


def test_by_hand_with_the_ledger_line_and_forgotten(changing: TestClient, stack: Stack) -> None:
    xid = FOREIGN.__class__.of("by-hand", "<mq>")
    producer = stack.client.producer(qualifier="shop")
    producer.tpc_begin(xid, topics=("orders",))
    producer.send("orders", b"1")
    producer.tpc_prepare()
    branch = branches(changing)[str(XaKey(xid, "shop"))]
    plan = changing.get(branch.replace("/branch?", "/change?do=rollback&"))
    assert "Ledger line that it writes" in plan.text
    form = confirmed(changing, branch.replace("/branch?", "/change?do=rollback&"), why="<b>no row</b>")
    done = post(changing, form)
    assert "heuristically rolled back" in done
    assert "Now on the ledger" in done
    ledger = changing.get("/transactions").text.partition("ledger-title")[2]
    assert "&lt;b&gt;no row&lt;/b&gt;" in ledger
    assert "ann@&lt;b&gt;host&lt;/b&gt;" in ledger
    assert "not as it was" in post(changing, form, 409)
    forget = confirmed(changing, branch.replace("/branch?", "/change?do=forget&"))
    assert "forgotten" in post(changing, forget)
    assert "by-hand" not in changing.get("/transactions").text
    assert "holds no such branch any more" in changing.get(branch).text


def test_what_is_certain_is_done_if_it_is_what_was_confirmed(changing: TestClient, stack: Stack) -> None:
    stack.kill_a_service(11, "PREPARED")
    branch = our_branch(changing, "decide")
    (path,) = (link for link in links(CHANGE, verdict_of(changing, branch)) if "do=apply" in link)
    form = confirmed(changing, path)
    assert "verdict is another one" in post(changing, form | {"seen": "commit; broker 0=prepared=commit"}, 409)
    assert "broker 0: rolled back" in post(changing, form)
    assert "verdict is another one" in post(changing, form, 409)
    assert "rollback" in stack.deciding.rows().values()
    text = verdict_of(changing, branch)
    assert "anything left to do" in text


def test_a_mixed_end_goes_on_record(changing: TestClient, stack: Stack) -> None:
    """Its row says commit, and an operator has rolled its branch back."""
    stack.kill_a_service(12, "DECIDED")
    branch = our_branch(changing, "commit")
    form = confirmed(changing, branch.replace("/branch?", "/change?do=rollback&"), why="by mistake")
    post(changing, form)
    said = verdict_of(changing, branch)
    assert ">mixed</span>" in said
    (path,) = (link for link in links(CHANGE, said) if "do=note" in link)
    done = post(changing, confirmed(changing, path))
    assert "on the ledger of broker 0" in done
    assert "decision table" in done.partition("Now on the ledger")[2]


def test_what_the_ledger_alone_knows_is_shown_and_forgotten(changing: TestClient, stack: Stack) -> None:
    key = XaKey(Xid.of("long-gone", "<mq>"), "shop")
    verbs = XaVerbs(stack.client.topology, stack.client.connections, "a test")
    assert RemoteBranch(verbs, key, 0).record_finding(BranchVerb.HAZARD, "ann@db1", "lost with its disk", "a back-up")
    branch = f"/transactions/branch?{urlencode({'broker': 0, 'key': str(key)})}"
    text = changing.get(branch).text
    assert ">hazard</span>" in text
    assert "lost with its disk" in text
    forget = confirmed(changing, branch.replace("/branch?", "/change?do=forget&"))
    assert "forgotten" in post(changing, forget)
    assert "holds no such branch any more" in changing.get(branch).text


def test_urls_that_name_no_branch(browser: TestClient) -> None:
    for query in ("", "?broker=0", "?broker=x&key=XID:1:61:62:u", "?broker=0&key=TX:a:1", "?broker=0&key=<script>"):
        answer = browser.get(f"/transactions/branch{query}")
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text
    assert browser.get("/nowhere").status_code == 404
    gone = browser.get("/transactions/branch?broker=9&key=XID:1:61:62:u")
    assert "broker 9 has no master" in gone.text


def verb(wire: WireClient, verb: TransactionVerb, key: XaKey) -> TransactionCommand:
    return TransactionCommand(key, "many", verb, None, key.qualifier, wire.opaque())


def test_of_thousands_in_doubt_the_oldest_are_listed_in_time_and_all_are_counted(
    hurried: TestClient, stack: Stack
) -> None:
    """With the command's own limits of time."""
    names = [XaKey(Xid.of(f"many-{number}", "<mq>"), "many") for number in range(4_000)]
    with WireClient(stack.other.port) as wire:
        for start in range(0, len(names), 100):
            for key in names[start : start + 100]:
                begin = verb(wire, TransactionVerb.BEGIN, key)
                put = Put("bills", 0, 0, None, key, wire.opaque(), b"1")
                wire.send(begin, put, verb(wire, TransactionVerb.PREPARE, key))
            wait_answers(wire, 300)
        try:
            text = html.unescape(hurried.get("/transactions").text)
            assert "lacks what is in doubt at broker" not in text
            assert f"<strong>{count(3_000)} more</strong>" in text
            last = hurried.get("/transactions?start=900").text.partition("ledger-title")[0]
            assert len(links(BRANCH, last)) == 100
            assert "at most" in hurried.get("/").text
        finally:
            wire.send(*(verb(wire, TransactionVerb.ROLLBACK, key) for key in names))
            wait_answers(wire, len(names))
    assert " more</strong>" not in hurried.get("/transactions").text


def wait_answers(wire: WireClient, number: int) -> None:
    for _ in range(number):
        answer = wire.receive()
        assert isinstance(answer, Result)
        assert answer.is_success, answer


def test_a_change_of_what_is_not_as_it_was_is_refused(stack: Stack, patient: None) -> None:
    settings = stack.settings(allows_changes=True)
    for name in ("apply", "note"):
        assert carry_out(settings, name, 0, FOREIGN_KEY, "as it was", "why") == Unknown(NOT_THE_SAME)
        assert carry_out(settings, name, 99, FOREIGN_KEY, "as it was", "why") == Unknown(NOT_THE_SAME)
    found = diagnose(settings).of(0, FOREIGN_KEY)
    assert found is not None
    refused = carry_out(settings, "note", 0, FOREIGN_KEY, found.seen, "why")
    assert refused == Unknown("nothing about it belongs on the ledger, or it is there already")
