"""Client, and a consumer with a short back-off."""

from collections.abc import Iterator

import pytest

from meta_client.client import Client
from meta_client.consumer.consumer import Consumer
from tests.fixtures.consuming import QUICK
from zk.embedded.chroot import Chroot


@pytest.fixture
def client(shared: Chroot) -> Iterator[Client]:
    with Client(shared.connect) as it:
        yield it


@pytest.fixture
def consumer(client: Client) -> Iterator[Consumer]:
    with client.consumer("group", config=QUICK) as it:
        yield it
