"""Connecting for a sending engine, when nothing is to be found out."""

from meta_client.errors import NotConnected
from meta_client.metadata.direct import DirectTopology
from meta_client.metadata.topology import TopicView
from meta_client.net.connections import Connections
from meta_client.producer.attempts import ConnectFailed
from meta_client.producer.driving import connect
from zk.errors import ZooKeeperUnavailable
from zk.tree.broker_url import BrokerUrl

URL = BrokerUrl("127.0.0.1", 1)  # nobody listens there


class Listed(DirectTopology):
    """Knows an address, and finds no broker when it is to ask again."""

    def view(self, topic: str, timeout_s: float) -> TopicView:
        return TopicView(topic, urls={0: URL})

    def maybe_view(self, topic: str) -> TopicView | None:
        raise ZooKeeperUnavailable("no broker answered")


def test_a_broker_is_unreachable_though_views_can_t_be_had_either() -> None:
    connections = Connections()
    outcome = connect(Listed([URL], connections), connections, 0, ("orders",))
    assert isinstance(outcome, ConnectFailed)
    assert isinstance(outcome.error, NotConnected)
    assert outcome.views == {}
    connections.close()
