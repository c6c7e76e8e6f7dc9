"""Admin port of a process of a client: its samples in one registry, on 127.0.0.1."""

import logging
from collections.abc import Callable, Iterable
from itertools import chain

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from meta_client.admin.endpoint import AdminEndpoint
from meta_client.admin.families import Sample, SampleCollector
from meta_client.admin.health import Health, HealthCheck
from meta_client.admin.log_samples import log_samples
from meta_client.admin.server import AdminServer

log = logging.getLogger(__name__)


def serve_samples(read: Callable[[], Iterable[Sample]], ready: HealthCheck, port: int) -> AdminServer:
    """Serve what *read* yields, what is logged, and health, until the server is closed. Raises CannotServe."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(SampleCollector(lambda: chain(read(), log_samples())))
    server = AdminServer("127.0.0.1", port, AdminEndpoint(registry, Health, ready))
    log.info("metrics and health served url=%s", server.url)
    return server
