"""A client whose session is soon over, and a consumer that does not rest for long."""

from collections.abc import Iterator

import pytest

from meta_client.client import Client
from meta_client.consumer.consumer import Consumer
from tests.fixtures.consuming import QUICK
from zk.corner import Corner


@pytest.fixture
def client(shared: Corner) -> Iterator[Client]:
    with Client(shared.connect, session_timeout_ms=4_000) as it:
        yield it


@pytest.fixture
def consumer(client: Client) -> Iterator[Consumer]:
    with client.consumer("group", config=QUICK) as it:
        yield it
