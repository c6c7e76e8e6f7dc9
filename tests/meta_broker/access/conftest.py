"""A broker with access rules, shared by the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.fixtures.access import AccessFile, logged_in
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from zk.embedded.chroot import chroot
from zk.embedded.server import EmbeddedZooKeeper

RIGHTS = {
    "shop": 'produce = ["orders"]\ndecide = ["shop-*"]',
    "reader": 'consume = ["orders"]\ngroups = ["billing"]',
    "operator": 'admin = ["*"]\ndecide = ["*"]\nconsume = ["*"]',
    "slave": "replicate = true",
    "nothing": "",
    "repeated": "",
    "inventive": 'decide = ["made-up"]',
    "finder": 'decide = ["made-up"]',
    "eager": 'consume = ["orders"]',
    "everything": 'produce = ["*"]\nconsume = ["*"]\nadmin = ["*"]\ndecide = ["*"]\nreplicate = true',
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> AccessFile:
    return AccessFile(tmp_path_factory.mktemp("access") / "access.toml", **RIGHTS)


@pytest.fixture(scope="module")
def served(
    file: AccessFile, tmp_path_factory: pytest.TempPathFactory, zookeeper_server: EmbeddedZooKeeper
) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker with those rules, and its ZooKeeper's connect string."""
    with (
        chroot(zookeeper_server.connect, "doors") as part,
        running_broker(tmp_path_factory.mktemp("doors") / "broker", part.connect, config=CONFIG + file.section()) as it,
    ):
        logged_in(it.port, "shop").close()  # counted by itself from now on, whatever else fails from this address
        yield it, part.connect
