"""Admin port of `metaq consume --group`. Imported when it is asked for: prometheus_client takes a tenth of a second."""

import functools

from meta_client.admin.health import Health
from meta_client.admin.server import AdminServer
from meta_client.admin.serving import serve_samples
from meta_client.client import Client
from meta_client.metrics import samples


def serve_consumer_admin(client: Client, port: int) -> AdminServer:
    """Serve metrics and health of the consumers of *client* on 127.0.0.1 until the server is closed. Raises
    CannotServe."""
    return serve_samples(lambda: samples(client.consumers), functools.partial(ready, client), port)


def ready(client: Client) -> Health:
    """Return whether every consumer goes on, as far as ZooKeeper and its watchdog tell."""
    consumers = client.consumers
    if not consumers:
        return Health(("it has not begun to consume",))
    session = client.session
    if not session.lease.is_valid():
        return Health((f"ZooKeeper {session.connect} does not answer: until it does, nothing is delivered",))
    return Health(tuple(finding.text for consumer in consumers for finding in consumer.findings()))
