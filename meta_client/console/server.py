"""The console as an ASGI application: pages, their streams, and the changes to branches."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from meta_client.console.access import CSRF_FIELD, AccessRules, Guard
from meta_client.console.changes import ACTIONS, carry_out, command_of, fingerprint, planned_entry
from meta_client.console.in_doubt import BranchFacts
from meta_client.console.live import Streams
from meta_client.console.page import Asked, InvalidQuery, NotHere, Page
from meta_client.console.pages import CHANGE, NAVIGATION, PAGES, RESET
from meta_client.console.reads import ERRORS, Reads, Unknown
from meta_client.console.rendering import render
from meta_client.console.reset_page import carry_out_reset
from meta_client.console.settings import ConsoleSettings
from meta_client.console.transactions_page import branch_of
from meta_client.operations.text import printable
from meta_client.protocol.errors import one_line

T = TypeVar("T")

FORM_BYTES_MAX: Final = 16 * 1024
FORM_S_MAX: Final = 15.0
FORM: Final = "application/x-www-form-urlencoded"

_log = logging.getLogger(__name__)


def make_app(settings: ConsoleSettings, rules: AccessRules, is_stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the application of a console. *is_stopping*: True once streams are to end."""
    console = Console(settings, rules, is_stopping)
    routes = [Route(page.path, console.shows(page), methods=["GET"]) for page in PAGES]
    routes.append(Route(CHANGE.path, console.confirm, methods=["GET"]))
    routes.append(Route(CHANGE.path, console.change, methods=["POST"]))
    routes.append(Route(RESET.path, console.reset, methods=["POST"]))
    static = Mount("/static", StaticFiles(packages=[("meta_client.console", "static")]))
    handlers: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        NotHere: console.not_here,
        InvalidQuery: console.bad_request,
        HTTPException: console.http_error,
        Exception: console.broke,
    }
    return Guard(Starlette(routes=[*routes, static], exception_handlers=handlers), rules)


class Console:
    def __init__(self, settings: ConsoleSettings, rules: AccessRules, is_stopping: Callable[[], bool]) -> None:
        self._settings = settings
        self._rules = rules
        self._reads = Reads()
        self._streams = Streams(is_stopping)
        self._changing = asyncio.Lock()  # one change at a time

    def shows(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of *page*: all of it, its live part for htmx, or the stream of that."""

        async def show(request: Request) -> Response:
            asked = self._asked(request)
            wants_stream = request.method == "GET" and "text/event-stream" in request.headers.get("accept", "")
            if page.live_s and wants_stream:
                return self._streams.open(page, asked, self._shared(page, request))
            found = await page.read(asked)
            return await self._rendered(page, request, found)

        return show

    async def confirm(self, request: Request) -> Response:
        """Show what a change would do, before anything is done."""
        asked = self._asked(request)
        name = self._action(asked.query.get("do", ""))
        found = await CHANGE.read(asked)
        broker_id, key = branch_of(asked)
        facts = found["found"]
        known = isinstance(facts, BranchFacts)
        return await self._rendered(
            CHANGE,
            request,
            found
            | {
                "name": name,
                "action": ACTIONS[name],
                "command": command_of(self._settings, name, broker_id, key),
                "seen": asked.query.get("seen") or (fingerprint(facts) if known else ""),
                "planned": planned_entry(self._settings, name, facts) if known else None,
                "result": None,
            },
        )

    async def change(self, request: Request) -> Response:
        """Carry out a confirmed change, and show what it did."""
        form = await self._own_form(request)
        asked = Asked(self._settings, self._reads, {}, QueryParams(form))
        name, (broker_id, key) = self._action(form.get("do", "")), branch_of(asked)
        seen, why = form.get("seen", ""), form.get("why", "")
        result = await self._carry_out(
            f"do={name} broker={broker_id} branch={key}",
            lambda: carry_out(self._settings, name, broker_id, key, seen, why),
        )
        found = await CHANGE.read(asked)
        return await self._rendered(
            CHANGE,
            request,
            found
            | {"name": name, "action": ACTIONS[name], "result": result, "planned": None, "seen": ""}
            | {"command": command_of(self._settings, name, broker_id, key, form.get("why", ""))},
            409 if isinstance(result, Unknown) else 200,
        )

    async def reset(self, request: Request) -> Response:
        """Carry out a confirmed reset, and show what it did."""
        form = await self._own_form(request)
        asked = Asked(self._settings, self._reads, request.path_params, QueryParams(form))
        group, where, to, seen = asked.path["group"], *(form.get(name, "") for name in ("where", "to", "seen"))
        result = await self._carry_out(
            f"do=reset group={group} where={where} to={to}",
            lambda: carry_out_reset(self._settings.client, group, where, to, seen),
        )
        found = await RESET.read(asked) | {"result": result}
        return await self._rendered(RESET, request, found, 409 if isinstance(result, Unknown) else 200)

    async def _own_form(self, request: Request) -> dict[str, str]:
        form = await _form(request)
        if not self._rules.is_own_form(form.get(CSRF_FIELD, "")):
            raise HTTPException(403, "this form is not of this console's present run: nothing was changed")
        return form

    async def _carry_out(self, what: str, call: Callable[[], T]) -> T | Unknown:
        """Run a change on a thread, one at a time, and log it with its result."""
        result: T | Unknown
        async with self._changing:
            try:
                result = await asyncio.to_thread(call)
            except ERRORS as error:
                result = Unknown(one_line(error))
        _log.warning("change %s", printable(f"who={self._settings.who} {what} result={result}"))
        return result

    async def not_here(self, request: Request, error: Exception) -> Response:
        return await self._error(request, 404, str(error))

    async def bad_request(self, request: Request, error: Exception) -> Response:
        return await self._error(request, 400, str(error))

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await self._error(request, error.status_code, error.detail)

    async def broke(self, request: Request, error: Exception) -> Response:
        _log.error("page failed path=%s", request.url.path, exc_info=error)
        return await self._error(request, 500, "this page failed; the console's own output says why")

    async def _error(self, request: Request, status: int, why: str) -> Response:
        page = Page(request.url.path, "Error", "error.html", CHANGE.read)
        return await self._rendered(page, request, {"status": status, "why": why}, status)

    def _asked(self, request: Request) -> Asked:
        return Asked(self._settings, self._reads, request.path_params, request.query_params)

    def _action(self, name: str) -> str:
        if name not in ACTIONS:
            raise InvalidQuery(f"{name!r} is no change: {', '.join(ACTIONS)}")
        return name

    def _shared(self, page: Page, request: Request) -> dict[str, object]:
        return {
            "csrf": self._rules.csrf,
            "page": page,
            "navigation": NAVIGATION,
            "allows_changes": self._rules.allows_changes,
            "query": request.query_params,
            "here": f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
        }

    async def _rendered(self, page: Page, request: Request, values: dict[str, Any], status: int = 200) -> Response:
        is_part = request.headers.get("hx-request") == "true"
        template = f"parts/{page.template}" if is_part else "page.html"
        text = await asyncio.to_thread(render, template, **self._shared(page, request), **values)
        return HTMLResponse(text, status)


async def _form(request: Request) -> dict[str, str]:
    """Read a form of at most FORM_BYTES_MAX, which has FORM_S_MAX to arrive. Raises HTTPException."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise HTTPException(415, f"a form is {FORM}")
    body = b""
    try:
        async with asyncio.timeout(FORM_S_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > FORM_BYTES_MAX:
                    raise HTTPException(413, f"a form has {FORM_BYTES_MAX} bytes at most")
    except TimeoutError as error:
        raise HTTPException(408, f"a form is all here within {FORM_S_MAX:g} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "this form is not all here") from error
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError as error:
        raise HTTPException(400, "this form does not read") from error
    return {name: values[0] for name, values in fields.items()}
