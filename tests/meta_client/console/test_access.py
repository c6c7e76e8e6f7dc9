"""Access by token, host and origin, and the headers of every response. No server is started."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from meta_client.console.access import HEADERS, AccessRules, Guard, hosts_of

PORT = 8300
OWN = f"http://127.0.0.1:{PORT}"
TOKEN = "0123456789abcdef"
RULES = AccessRules(TOKEN, hosts_of("127.0.0.1", PORT), PORT)
CHANGING = AccessRules(TOKEN, hosts_of("127.0.0.1", PORT), PORT, allows_changes=True)
STATIC = Path(__file__).parents[3] / "meta_client/console/static"


def app_of(rules: AccessRules) -> ASGIApp:
    async def page(request: object) -> PlainTextResponse:
        return PlainTextResponse("inside")

    return Guard(Starlette(routes=[Route("/{path:path}", page, methods=["GET", "POST", "PUT"])]), rules)


def browser(rules: AccessRules = RULES, *, has_cookie: bool = True, base: str = OWN) -> TestClient:
    cookies = {rules.cookie: rules.token} if has_cookie else {}
    return TestClient(app_of(rules), base_url=base, cookies=cookies, follow_redirects=False)


def test_the_token_lets_in_once_and_the_cookie_from_then_on() -> None:
    client = browser(has_cookie=False)
    assert client.get("/").status_code == 401
    assert "inside" not in client.get("/?token=wrong").text
    answer = client.get(f"/groups?group=a&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups?group=a")
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert client.get("/").text == "inside"


@pytest.mark.parametrize(
    "path", [f"//evil.example/?token={TOKEN}", f"/%2f/evil.example/?token={TOKEN}", f"/%5cevil.example/?token={TOKEN}"]
)
def test_the_welcome_leads_to_this_console_alone(path: str) -> None:
    location = browser(has_cookie=False).get(OWN + path).headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


@pytest.mark.parametrize("cookie", ["", "x", TOKEN[:-1], TOKEN + "0", "\u00e4"])
def test_a_wrong_cookie_is_none(cookie: str) -> None:
    headers = {b"cookie": f"{RULES.cookie}={cookie}".encode()}
    assert browser(has_cookie=False).get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""])
def test_another_name_gets_nothing(host: str) -> None:
    """DNS rebinding: the browser sends the cookie's request under the name of the attacker."""
    answer = browser().get(f"/?token={TOKEN}", headers={"host": host})
    assert (answer.status_code, "set-cookie" in answer.headers) == (421, False)


def test_names_of_its_own() -> None:
    for host in (f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"):
        assert browser().get("/", headers={"host": host}).text == "inside"
    behind = AccessRules(TOKEN, hosts_of("127.0.0.1", PORT, ("metaq.example",)), PORT)
    assert browser(behind).get("/", headers={"host": "metaq.example"}).text == "inside"


def test_it_only_reads_unless_told() -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = browser().request(method, "/", headers={"origin": OWN})
        assert (answer.status_code, "--allow-changes" in answer.text) == (403, True)
    assert browser(CHANGING).post("/", headers={"origin": OWN}).text == "inside"
    assert browser(CHANGING).put("/", headers={"origin": OWN}).status_code == 405
    assert browser(CHANGING, has_cookie=False).post(f"/?token={TOKEN}", headers={"origin": OWN}).status_code == 401


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", f"http://127.0.0.1:{PORT + 1}", OWN + "/"])
def test_a_change_from_another_page_is_refused(origin: str | None) -> None:
    answer = browser(CHANGING).post("/", headers={} if origin is None else {"origin": origin})
    assert (answer.status_code, "inside" in answer.text) == (403, False)


def test_every_response_has_the_headers() -> None:
    answers = [browser().get("/"), browser(has_cookie=False).get("/"), browser().post("/")]
    answers += [browser().get("/", headers={"host": "evil.example"})]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy


def test_a_form_has_a_secret_of_its_own() -> None:
    other = AccessRules("fedcba9876543210", RULES.hosts, PORT)
    assert RULES.is_own_form(RULES.csrf)
    assert not any(RULES.is_own_form(text) for text in ("", TOKEN, other.csrf, RULES.csrf[:-1]))
    assert TOKEN not in repr(RULES)


def test_files_of_others_are_these_and_have_their_licences() -> None:
    assert {path.name for path in STATIC.iterdir()} == {
        *("console.css", "console.js", "icon.svg"),
        *("htmx-2.0.11.min.js", "htmx-LICENSE", "uplot-1.6.32.min.js", "uplot-1.6.32.min.css", "uplot-LICENSE"),
    }
    assert "Zero-Clause BSD" in (STATIC / "htmx-LICENSE").read_text()
    assert "MIT License" in (STATIC / "uplot-LICENSE").read_text()


def test_templates_hold_no_inline_script_or_style() -> None:
    for path in STATIC.parent.glob("templates/**/*.html"):
        text = path.read_text()
        assert "style=" not in text, path
        assert "|safe" not in text, path
        assert not any(word in text for word in (" onclick", "hx-on", "javascript:", "{% autoescape")), path
