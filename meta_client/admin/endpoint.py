"""Paths of the admin port: /metrics, /health/live and /health/ready. A WSGI application."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from meta_client.admin.health import Health, HealthCheck, encode_health
from meta_client.admin.host import may_ask_as

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

SCRAPE_S_MAX: Final = 5.0  # a scrape waits so long for the one before it, which a disk may hold up
OPEN_METRICS: Final = "application/openmetrics-text"
WAITING_MAX: Final = 4  # scrapes that wait; each holds a thread
OTHER_NAME: Final = b"this port is for this machine: ask it by its IP address or as localhost, not by another name\n"


class AdminEndpoint:
    """Serves the metrics of *registry*, and health."""

    def __init__(
        self,
        registry: CollectorRegistry,
        live: HealthCheck,
        ready: HealthCheck,
        admits: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """*admits* judges the `Authorization` of a request; others are told whether the process is alive and ready, and
        not why."""
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._checks = {"/health/live": ("live", live), "/health/ready": ("ready", ready)}
        self._admits = admits
        self._waiting = threading.BoundedSemaphore(1 + WAITING_MAX)
        self._scraping = threading.Lock()  # one at a time: a scrape that hangs keeps one thread, not one more each time

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not may_ask_as(environ.get("HTTP_HOST"), environ["SERVER_NAME"]):
            return _respond(start_response, "421 Misdirected Request", OTHER_NAME)
        if environ["REQUEST_METHOD"] != "GET":
            return _respond(start_response, "405 Method Not Allowed", b"GET only\n", ("Allow", "GET"))
        is_admitted = self._admits(environ.get("HTTP_AUTHORIZATION", ""))
        if path == "/metrics" and not is_admitted:
            log.warning("metrics refused peer=%s reason=no token, or a wrong one", environ.get("REMOTE_ADDR"))
            text = b"this port asks for its token: authorization: {credentials_file: ...}\n"
            return _respond(start_response, "401 Unauthorized", text, ("WWW-Authenticate", "Bearer"))
        if path == "/metrics":
            return self._scrape_or_refuse(environ, start_response)
        if (found := self._checks.get(path)) is not None:
            name, check = found
            health = check()
            if not is_admitted:
                health = Health(("ask with the token",) if health.why_not else ())
            status = "503 Service Unavailable" if health.why_not else "200 OK"
            return _respond(start_response, status, encode_health(name, health), ("Content-Type", "application/json"))
        return _respond(start_response, "404 Not Found", b"/metrics /health/live /health/ready\n")

    def _scrape_or_refuse(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not self._waiting.acquire(blocking=False):
            return _respond(start_response, "503 Service Unavailable", b"too many scrapes wait already\n")
        try:
            return self._scrape(environ, start_response)
        finally:
            self._waiting.release()

    def _scrape(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not self._scraping.acquire(timeout=SCRAPE_S_MAX):
            return _respond(start_response, "503 Service Unavailable", b"another scrape has not ended\n")
        try:
            # prometheus_client's parser of the header stumbles over versions that are no numbers.
            accepted = f"{OPEN_METRICS}; version=1.0.0" if OPEN_METRICS in environ.get("HTTP_ACCEPT", "") else ""
            return self._metrics(environ | {"HTTP_ACCEPT": accepted}, start_response)
        except Exception:  # a bug, or a broker that stops meanwhile
            log.exception("scrape failed")
            return _respond(start_response, "500 Internal Server Error", b"see the log\n")
        finally:
            self._scraping.release()


def _respond(
    start_response: "StartResponse", status: str, body: bytes, header: tuple[str, str] = ("Content-Type", "text/plain")
) -> Iterable[bytes]:
    start_response(status, [header, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
    return [body]
