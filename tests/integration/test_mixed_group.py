"""Genuine members and ours in one group: everybody agrees, nobody sees anything that is only ours."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.batch import Batch
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.genuine_member import TRIES, GenuineMember
from tests.fixtures.shares import SLOW, java_sorted
from tests.fixtures.zookeeper_tree import snapshot
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

GROUP, TOPIC = "mixed", "wide"
SYNC_S = 0.3  # zk.zkSyncTimeMs, 5 s in earnest


@pytest.fixture
def genuine(zookeeper: Chroot) -> Iterator[Callable[[str, str], GenuineMember]]:
    with contextlib.ExitStack() as stack:
        yield lambda name, strategy: stack.enter_context(
            GenuineMember(zookeeper.connect, GROUP, name, TOPIC, strategy, SYNC_S)
        )


def join(client: Client, name: str, strategy: str, inbox: Inbox) -> Consumer:
    config = ConsumerConfig(consumer_id=name, strategy=strategy, backoff_s_max=0.2, commit_period_s=0.2)
    consumer = client.consumer(GROUP, config=config)
    consumer.subscribe(TOPIC, inbox)
    consumer.start()
    return consumer


def owners(client: Client) -> dict[str, tuple[str, bool]]:
    """Owner and whether it is ephemeral, by partition."""
    folder = f"/meta/consumers/{GROUP}/owners/{TOPIC}/"
    nodes = snapshot(client.session, f"/meta/consumers/{GROUP}/owners")
    return {path.removeprefix(folder): (data.decode(), is_ephemeral) for path, (data, is_ephemeral) in nodes.items()}


def agreed(client: Client, strategy: str, *members: GenuineMember | Consumer) -> Callable[[], bool]:
    """Return whether the nodes match section 9 for these members, and each member's own view matches the nodes."""
    ids = java_sorted(member.consumer_id for member in members)
    expected = SLOW[strategy](java_sorted(f"0-{number}" for number in range(8)), ids)

    def check() -> bool:
        believed = {
            str(partition): member.consumer_id
            for member in members
            for partition in (
                member.owned() if isinstance(member, GenuineMember) else [key[1] for key in member.owned()]
            )
        }
        return owners(client) == {name: (owner, True) for name, owner in expected.items()} and believed == expected

    return check


@pytest.mark.parametrize("strategy", sorted(SLOW))
def test_genuine_members_and_ours_agree(
    wide_broker: BrokerProcess,
    open_client: OpenClient,
    genuine: Callable[[str, str], GenuineMember],
    strategy: str,
) -> None:
    inbox, sender = Inbox(), open_client()
    java_b = genuine("b", strategy)
    wait_until(agreed(sender, strategy, java_b))
    ours_a = join(open_client(), "a", strategy, inbox)
    wait_until(agreed(sender, strategy, java_b, ours_a))
    java_c = genuine("c", strategy)
    ours_d = join(open_client(), "d", strategy, inbox)
    members: list[GenuineMember | Consumer] = [java_b, ours_a, java_c, ours_d]
    wait_until(agreed(sender, strategy, *members))
    producer = sender.producer()
    for number in range(8):
        producer.send(TOPIC, b"%d" % number, partition=Partition(0, number))
    mine = {key[1].number for consumer in (ours_a, ours_d) for key in consumer.owned()}
    wait_until(lambda: inbox.payloads == Counter(b"%d" % number for number in mine))
    ours_a.close()
    wait_until(agreed(sender, strategy, java_b, java_c, ours_d))
    java_c.leave()
    wait_until(agreed(sender, strategy, java_b, ours_d))
    # What a genuine member never read comes to ours from where the group was; nothing comes twice.
    mine |= {key[1].number for key in ours_d.owned()}
    wait_until(lambda: inbox.payloads == Counter(b"%d" % number for number in mine))
    tree = snapshot(sender.session, "/meta")
    folders = {path.split("/")[2] for path in tree}
    assert folders <= {"brokers", "consumers", "metaq"}
    consumers = {path.split("/")[4] for path in tree if path.startswith("/meta/consumers/")}
    assert consumers <= {"ids", "owners", "offsets"}
    del wide_broker


def test_a_genuine_member_that_has_given_up_is_called(
    wide_broker: BrokerProcess, open_client: OpenClient, genuine: Callable[[str, str], GenuineMember]
) -> None:
    """A listener of ours holds a partition for longer than a genuine member tries; once it is free, nothing changes in
    the group any more, and nobody would own what is that member's."""
    inbox, sender = Inbox(), open_client()
    config = ConsumerConfig(consumer_id="a", backoff_s_max=0.2, watchdog_s=0.4, fetch_wait_s=0.2)
    ours = open_client(session_timeout_ms=2_000).consumer(GROUP, config=config)
    ours.subscribe(TOPIC, inbox)
    ours.start()
    held, release, entered = Partition(0, 7), threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        if batch.partition == held:
            entered.set()
            assert release.wait(60)

    inbox.before = hold
    sender.producer().send(TOPIC, b"slow", partition=held)
    assert entered.wait(60)
    java = genuine("b", "default")
    wait_until(lambda: java.failed_tries == TRIES and not java.owned())
    release.set()
    said = "nobody owns it: look why mixed_b does not"
    wait_until(lambda: any(said in finding.text for finding in ours.findings()))
    wait_until(agreed(sender, "default", ours, java))
    assert inbox.payloads == {b"slow": 1}
    assert java.failed_tries == TRIES
    del wide_broker
