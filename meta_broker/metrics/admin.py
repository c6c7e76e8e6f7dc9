"""A broker's admin port: its samples in one registry, served beside its loop."""

import logging
from collections.abc import Iterator

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import CollectorRegistry

from meta_broker.metrics.admin_token import AdminToken
from meta_broker.metrics.samples import (
    archive_samples,
    connection_samples,
    disk_samples,
    journal_samples,
    master_samples,
    process_samples,
    request_samples,
    slave_samples,
    topic_samples,
    transaction_samples,
)
from meta_broker.metrics.status import BrokerStatus
from meta_broker.net.tls_listener import PortTls
from meta_client.admin.endpoint import AdminEndpoint
from meta_client.admin.families import Sample, SampleCollector
from meta_client.admin.log_samples import log_samples
from meta_client.admin.server import AdminServer

log = logging.getLogger(__name__)


def serve_admin(status: BrokerStatus, port: int, token: AdminToken, tls: PortTls | None = None) -> AdminServer:
    """Serve metrics and health of a broker on *port* until the server is closed, to those that *token* admits, with
    *tls* if it is given.

    Raises CannotServe.
    """
    host = status.config.admin.host
    registry = CollectorRegistry()
    for standard in (ProcessCollector, PlatformCollector, GCCollector):
        standard(registry=registry)
    registry.register(SampleCollector(lambda: samples(status)))
    endpoint = AdminEndpoint(registry, status.live, status.ready, token.admits)
    context = None if tls is None else lambda: tls.context
    server = AdminServer(host, port, endpoint, "--admin-port or [admin] port", context)
    log.info("metrics and health served url=%s", server.url)
    return server


def samples(status: BrokerStatus) -> Iterator[Sample]:
    """Yield every number of the broker that is known now."""
    yield from process_samples(status)
    yield from log_samples()
    if (broker := status.open) is None:
        return
    context = broker.context
    yield from connection_samples(broker)
    yield from request_samples(context)
    yield from topic_samples(context)
    yield from journal_samples(context)
    yield from archive_samples(context)
    yield from disk_samples(context)
    yield from transaction_samples(context)
    if context.master is not None:
        yield from master_samples(context.master)
    if context.slave is not None:
        yield from slave_samples(context.slave)
