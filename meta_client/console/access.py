"""Access to the console: who may ask, from which page, for what. Pure, except for the ASGI wrapper around it.

A random token lets in: once in the printed URL, then in a cookie that no script reads and no other site sends. The Host
header must name an address this console listens at, so that a name that was pointed at it (DNS rebinding) gets nothing.
A change needs `--allow-changes`, this console's own Origin, and a secret that only its own forms contain.
"""

import hashlib
import hmac
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PARAMETER: Final = "token"  # of the first URL
CSRF_FIELD: Final = "csrf"
SAFE: Final = frozenset({"GET", "HEAD"})
COOKIE_S: Final = 7 * 86_400
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer, under which a form's Origin would be null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOCKED_OUT: Final = (
    "This console wants its token: open the URL that `metaq console` printed, with ?token=... at its end.\n"
)
READ_ONLY: Final = "This console only reads: start it with --allow-changes to change anything.\n"
WRONG_HOST: Final = "This console does not listen at that name: open the URL that it printed, or add --allow-host.\n"
TWO_LENGTHS: Final = "This request has two lengths: nothing was done.\n"
FOREIGN: Final = "This request does not come from a page of this console: nothing was changed.\n"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Rules of one console. *hosts*: values of the Host header that are its own, with the port."""

    token: str = field(repr=False)
    hosts: frozenset[str]
    port: int
    allows_changes: bool = False

    @property
    def cookie(self) -> str:
        """Name of the cookie. Browsers share cookies among the ports of a host."""
        return f"metaq-console-{self.port}"

    @property
    def csrf(self) -> str:
        """Secret of every form."""
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def is_own_form(self, secret: str) -> bool:
        return hmac.compare_digest(secret.encode(errors="replace"), self.csrf.encode())

    def refusal(self, method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return status and text for a request that no sender may make; None if it may go on."""
        if headers.get("host", "").lower() not in self.hosts:
            return 421, WRONG_HOST
        if method in SAFE:
            return None
        if not self.allows_changes:
            return 403, READ_ONLY
        if method != "POST":
            return 405, "Only GET, HEAD and POST are served.\n"
        # Every browser sends Origin with a POST; a request without one comes from none.
        if headers.get("origin", "") not in {f"http://{host}" for host in self.hosts} | {
            f"https://{host}" for host in self.hosts
        }:
            return 403, FOREIGN
        return None

    def has_cookie(self, header: str) -> bool:
        try:
            found = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return False
        return found is not None and self.is_token(found.value)


def hosts_of(host: str, port: int, more: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the Host values of a console that listens at *host*; *more*: other names, as given by its user."""
    names = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host, *more}
    return frozenset({f"{name.lower()}:{port}" for name in names} | {name.lower() for name in more})


class Guard:
    """Wraps an ASGI application: applies the rules, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        answer = self._judge(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _judge(self, scope: Scope) -> Response | None:
        """Return the response to a request that does not reach the application."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if {"content-length", "transfer-encoding"} <= headers.keys():
            return PlainTextResponse(TWO_LENGTHS, 400, {"Connection": "close"})
        if (refusal := self._rules.refusal(scope["method"], headers)) is not None:
            return PlainTextResponse(refusal[1], refusal[0])
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] in SAFE and any(name == PARAMETER and self._rules.is_token(text) for name, text in query):
            return self._welcome(scope["path"], [(name, text) for name, text in query if name != PARAMETER])
        if not self._rules.has_cookie(headers.get("cookie", "")):
            return PlainTextResponse(LOCKED_OUT, 401)
        return None

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Set the cookie, and go on without the token: it shall not stand in the history, nor in what is copied."""
        place = "/" + path.lstrip("/")  # two slashes would lead to another host
        response = RedirectResponse(f"{place}?{urlencode(query)}" if query else place, 303)
        rules = self._rules
        response.set_cookie(
            rules.cookie, rules.token, max_age=COOKIE_S, path="/", httponly=True, samesite="strict", secure=False
        )
        return response


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = message.setdefault("headers", [])
    present = {name.lower() for name, _ in headers}
    headers += [
        (name.lower().encode(), value.encode())
        for name, value in HEADERS.items()
        if name.lower().encode() not in present
    ]
