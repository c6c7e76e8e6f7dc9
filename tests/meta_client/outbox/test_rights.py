"""A relay at a broker with access rules: what a right lets it do, and that messages wait, in order, where one is
missing."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from meta_client import Client, Credentials
from tests.fixtures.access import PASSWORD, AccessFile
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from tests.meta_client.outbox.conftest import OutboxWorld, drain
from tests.meta_client.transactions.conftest import World, make_postgres
from zk.embedded.chroot import Chroot

ROOT = Path(__file__).parents[3]
NAMED = "`produce` of the topics and `decide` of `mq1-*`"


def test_messages_wait_for_a_right_that_is_missing_and_keep_their_order(
    tmp_path: Path, zookeeper: Chroot, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    assert NAMED in " ".join((ROOT / "docs/outbox.md").read_text().split())
    decide, produce = 'decide = ["mq1-*"]\n', 'produce = ["orders", "invoices"]\n'
    file = AccessFile(tmp_path / "access.toml", relay=decide + 'produce = ["orders"]', reader='consume = ["*"]')
    deciding = make_postgres(database)
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG + file.section()) as broker,
        Client(zookeeper.connect, credentials=Credentials("relay", PASSWORD)) as client,
        Client(zookeeper.connect, credentials=Credentials("reader", PASSWORD)) as reader,
    ):
        on = OutboxWorld(World(deciding, [broker], zookeeper.connect, client, {}))
        with on.closing:
            relay, count = on.relay(), 0
            deadline = time.monotonic() + 60
            for rights, told in [
                (decide + 'produce = ["orders"]', ["topic=invoices broker=0 reason=.*may not produce invoices"]),
                (
                    produce,
                    ["broker=0 reason=.*may not decide mq1-", "topic=invoices reason=.*broker 0 takes no messages"],
                ),
            ]:
                file.rights["relay"] = rights
                file.write()
                os.kill(broker.pid, signal.SIGHUP)
                while not all(re.search(f"messages wait {one}", caplog.text) for one in told):
                    assert on.status().aside == 0
                    assert time.monotonic() < deadline, (relay.counts, relay.trouble)
                    on.work(count, topic="invoices")
                    on.work(count + 1)
                    count += 2
                    drain(relay)
            file.rights["relay"] = decide + produce
            file.write()
            os.kill(broker.pid, signal.SIGHUP)
            while on.status().waiting:
                assert time.monotonic() < deadline, (relay.counts, relay.trouble)
                relay.run_pass()
            for topic, partitions, first in (("invoices", 2, 0), ("orders", 4, 1)):
                found = read_whole(reader, topic, partitions)
                assert sorted(int(one.payload) for one in found) == list(range(first, count, 2))
                by_attribute: dict[object, list[int]] = {}
                for one in found:
                    by_attribute.setdefault(one.attribute, []).append(int(one.payload))
                assert all(numbers == sorted(numbers) for numbers in by_attribute.values())
