"""The effects of a sending engine that both of its drivers carry out alike: connect to a broker, submit a request."""

import contextlib

from meta_client.errors import Destination, NoBroker, NotConnected
from meta_client.metadata.topology import Directory, TopicView
from meta_client.net.calls import checked_broker
from meta_client.net.pending_reply import OnDone
from meta_client.net.transport import Transports
from meta_client.producer.attempts import Connected, ConnectFailed, SendAttempt
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

VERSION_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0  # limits the delay that an unreachable broker causes to others
VIEW_TIMEOUT_S = 3.0  # as a producer's send (spec 7.4)
CLOSE_TIMEOUT_S = 10.0


def connect(
    topology: Directory, connections: Transports, broker_id: int, topics: tuple[str, ...]
) -> Connected | ConnectFailed:
    """Connect to a broker, whose address the views of *topics* tell. Waits; tasks call it inside `run`."""
    try:
        connection = connections.get(_address(topology, broker_id, topics), CONNECT_TIMEOUT_S, patient=False)
        capabilities = connection.capabilities(VERSION_TIMEOUT_S)
        return Connected(checked_broker(connection, capabilities, broker_id), capabilities.extensions)
    except Exception as error:  # whatever it is: the batches must be sent again, or given up
        views: dict[str, TopicView | None] = {}
        with contextlib.suppress(MetaError, ZooKeeperError):  # a view of listed brokers may be asked of them
            views = {topic: topology.maybe_view(topic) for topic in topics}
        return ConnectFailed(error, views)


def _address(topology: Directory, broker_id: int, topics: tuple[str, ...]) -> BrokerUrl:
    for topic in topics:
        if (url := topology.view(topic, VERSION_TIMEOUT_S).urls.get(broker_id)) is not None:
            return url
    raise NoBroker("it is not up: start it, or wait", Destination(topics[0], broker=broker_id))


def submit(send: SendAttempt, on_answer: OnDone) -> MetaError | None:
    """Submit *send*; return the error if nothing was sent."""
    connection = send.connection
    if connection.is_broken:
        return NotConnected(f"connection to {connection.url} is lost: try again for a new one")
    try:
        connection.submit(send.request(), on_answer)
    except MetaError as error:
        return error
    return None
