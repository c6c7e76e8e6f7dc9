"""Every page in a real Chromium: it works without a word in the console, axe finds nothing serious, and the hostile
texts stay texts. Screenshots go to build/console."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from journal.records.xid import XaKey, Xid
from meta_client.console.in_doubt import branch_facts
from tests.meta_client.console.conftest import AGE_S, Stack, started_console

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
Scheme = Literal["light", "dark"]
LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1280), ("dark", 1280), ("light", 380))
SCREENSHOTS = Path(__file__).parents[3] / "build/console"
WAIT_MS = 60_000
CLICKED = Xid.of("by-clicking", "mq")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")


@pytest.fixture(scope="module")
def console_url(stack: Stack) -> Iterator[str]:
    """A console that allows changes, as its command; its URL with the token."""
    words = ["--database", stack.deciding.url, "--age", str(AGE_S)]
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(stack.zookeeper, out, *words, "--allow-changes")
        yield url
        process.kill()
        process.wait()
        assert b"Traceback" not in Path(out.name).read_bytes()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Browser, console_url: str) -> Iterator[Callable[..., Page]]:
    """Open a page as a browser that was let in. Whatever a browser complains about fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_page(place: str, scheme: Scheme = "light", width: int = 1280) -> Page:
        viewport: ViewportSize = {"width": width, "height": 800}
        context = chromium.new_context(color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(console_url)
        assert "token" not in page.url
        page.goto(console_url.partition("/?")[0] + place)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def settle(page: Page) -> None:
    """Wait for what the page asks for after it was loaded."""
    expect(page.locator(".waiting")).to_have_count(0, timeout=WAIT_MS)
    if page.locator("#live-state").count():
        expect(page.locator("#live-state")).to_have_text("live", timeout=WAIT_MS)


def picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def serious(page: Page) -> list[str]:
    """The findings of axe that matter."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


PAGES = {
    "overview": "/",
    "transactions": "/transactions",
    "diagnosis": "/transactions/diagnosis",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages?partition=0-0&at=latest",
    "groups": "/groups",
    "group": "/groups/billing",
    "reset": "/groups/billing/reset?to=latest",
    "dead-letters": "/dead-letters",
    "replication": "/replication",
    "journal": "/journal",
}


def look_at(page: Page, name: str, scheme: Scheme, width: int) -> None:
    """Take a picture; nothing may stick out, and axe find nothing. Its findings do not depend on the width."""
    settle(page)
    picture(page, f"{name}-{scheme}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
    assert width < 1000 or serious(page) == [], name


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_every_page_in_both_schemes_and_on_a_telephone(scheme: Scheme, width: int, opened: Callable[..., Page]) -> None:
    page = opened("/", scheme, width)
    origin = page.url.rstrip("/")
    for name, place in PAGES.items():
        page.goto(origin + place)
        if name == "group":
            expect(page.locator(".u-legend")).to_contain_text("orders")
        look_at(page, name, scheme, width)
    page.goto(origin + "/topics/orders/messages?partition=0-1")
    page.locator("tbody th a").first.click()
    expect(page.locator("pre")).to_contain_text("<script>alert('payload')</script>")
    look_at(page, "message", scheme, width)
    page.goto(origin + "/transactions")
    page.get_by_role("link", name=re.compile("^1_bXEx")).first.click()
    expect(page.get_by_text("Each side, and the doctor's verdict")).to_be_visible()
    look_at(page, "branch", scheme, width)
    page.get_by_role("link", name="Commit by hand").click()
    expect(page.get_by_text("Ledger line that it writes")).to_be_visible()
    look_at(page, "change", scheme, width)


def test_a_branch_is_ended_by_clicking(opened: Callable[..., Page], stack: Stack) -> None:
    """A browser's own Origin, cookie and form; the result has the line of the ledger."""
    producer = stack.client.producer(qualifier="clicks")
    producer.tpc_begin(CLICKED, topics=("orders",))
    producer.send("orders", b"1")
    producer.tpc_prepare()
    page = opened("/transactions")
    page.get_by_role("link", name=str(CLICKED)).click()
    page.get_by_role("link", name="Roll back by hand").click()
    button = page.get_by_role("button", name="Roll back by hand")
    button.click()  # without a reason the browser does not send it
    expect(page.get_by_text("Ledger line that it writes")).to_be_visible()
    page.get_by_label("Why (kept on record)").fill("<b>no row</b>")
    button.click()
    expect(page.get_by_role("heading", name="Now on the ledger")).to_be_visible()
    expect(page.get_by_text("<b>no row</b>", exact=True)).to_be_visible()
    picture(page, "changed-light-1280")
    assert serious(page) == []
    report = branch_facts(stack.client, 0, XaKey(CLICKED, "clicks")).report
    assert report is not None
    assert report["state"] == "heuristically_rolled_back"


FOCUSED = r"document.activeElement.outerHTML.replace(/\d+%/, '%')"  # whatever room others take on the disk meanwhile


def test_with_the_keyboard_alone(opened: Callable[..., Page]) -> None:
    page = opened("/")
    settle(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Pause")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.evaluate(FOCUSED)
    expect(page.locator("tbody td", has_text="/s").first).to_be_visible()  # the part was replaced meanwhile
    assert page.evaluate(FOCUSED) == focused
    page.get_by_role("button", name="Pause").press("Enter")
    expect(page.locator("#live-state")).to_have_text("paused")
