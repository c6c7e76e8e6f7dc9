"""Paths of the admin port: /metrics, /health/live and /health/ready. A WSGI application."""

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from meta_client.admin.health import HealthCheck, encode_health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

SCRAPE_S_MAX: Final = 5.0  # a scrape waits so long for the one before it, which a disk may hold up


class AdminEndpoint:
    """Serves the metrics of *registry*, and health."""

    def __init__(self, registry: CollectorRegistry, live: HealthCheck, ready: HealthCheck) -> None:
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._checks = {"/health/live": ("live", live), "/health/ready": ("ready", ready)}
        self._scraping = threading.Lock()  # one at a time: a scrape that hangs keeps one thread, not one more each time

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ["REQUEST_METHOD"] != "GET":
            return _answer(start_response, "405 Method Not Allowed", b"GET only\n", ("Allow", "GET"))
        if path == "/metrics":
            return self._scrape(environ, start_response)
        if (found := self._checks.get(path)) is not None:
            name, check = found
            health = check()
            status = "503 Service Unavailable" if health.why_not else "200 OK"
            return _answer(start_response, status, encode_health(name, health), ("Content-Type", "application/json"))
        return _answer(start_response, "404 Not Found", b"/metrics /health/live /health/ready\n")

    def _scrape(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not self._scraping.acquire(timeout=SCRAPE_S_MAX):
            return _answer(start_response, "503 Service Unavailable", b"another scrape has not ended\n")
        try:
            return self._metrics(environ, start_response)
        except Exception:  # a bug, or a broker that stops meanwhile
            log.exception("scrape failed")
            return _answer(start_response, "500 Internal Server Error", b"see the log\n")
        finally:
            self._scraping.release()


def _answer(
    start_response: "StartResponse", status: str, body: bytes, header: tuple[str, str] = ("Content-Type", "text/plain")
) -> Iterable[bytes]:
    start_response(status, [header, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
    return [body]
