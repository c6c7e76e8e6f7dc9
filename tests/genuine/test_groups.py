"""Java members and metaq's in one group: the same shares, one owner a partition, one offset for both."""

from collections import Counter
from collections.abc import Callable

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.shares import SLOW, java_sorted
from tests.fixtures.zookeeper_tree import snapshot
from tests.genuine.conftest import OpenJava
from tests.genuine.java_client import JavaProcess
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

GROUP, TOPIC = "mixed", "wide"
SETTINGS = {"default": (), "consistent": ("consistent",)}  # of a Java consumer, by strategy


def join(client: Client, name: str, inbox: Inbox, strategy: str = "default") -> Consumer:
    config = ConsumerConfig(consumer_id=name, strategy=strategy, backoff_s_max=0.2, commit_period_s=0.2)
    consumer = client.consumer(GROUP, config=config)
    consumer.subscribe(TOPIC, inbox)
    consumer.start()
    return consumer


def shared(client: Client, strategy: str, *ids: str) -> Callable[[], bool]:
    """Return whether the owners' nodes match section 9 of the specification for these members."""
    expected = SLOW[strategy](java_sorted(f"0-{number}" for number in range(8)), java_sorted(ids))
    folder = f"/meta/consumers/{GROUP}/owners"

    def check() -> bool:
        nodes = snapshot(client.session, folder)
        return {path.rpartition("/")[2]: (data.decode(), passing) for path, (data, passing) in nodes.items()} == {
            name: (owner, True) for name, owner in expected.items()
        }

    return check


def send_to_all(client: Client, first: int, count: int) -> list[bytes]:
    producer = client.producer()
    sent = [b"%d" % number for number in range(first, first + count)]
    for number, payload in enumerate(sent):
        producer.send(TOPIC, payload, partition=Partition(0, number % 8))
    return sent


@pytest.fixture
def sender(wide_broker: BrokerProcess, open_client: OpenClient) -> Client:
    del wide_broker
    return open_client()


@pytest.mark.parametrize("strategy", sorted(SLOW))
def test_members_come_and_go(sender: Client, open_client: OpenClient, open_java: OpenJava, strategy: str) -> None:
    inbox, java_b, java_c = Inbox(), open_java(), open_java()

    def received(payloads: list[bytes]) -> Callable[[], bool]:
        return lambda: inbox.payloads + Counter(java_b.payloads + java_c.payloads) == Counter(payloads)

    b = java_b.subscribe(GROUP, TOPIC, *SETTINGS[strategy], as_id="b")
    wait_until(shared(sender, strategy, b))
    sent = send_to_all(sender, 0, 80)
    wait_until(received(sent))
    ours_a = join(open_client(), "a", inbox, strategy)
    wait_until(shared(sender, strategy, b, ours_a.consumer_id))
    sent += send_to_all(sender, 80, 80)
    wait_until(received(sent))
    c = java_c.subscribe(GROUP, TOPIC, *SETTINGS[strategy], as_id="c")
    ours_d = join(open_client(), "d", inbox, strategy)
    wait_until(shared(sender, strategy, ours_a.consumer_id, b, c, ours_d.consumer_id))
    sent += send_to_all(sender, 160, 80)
    wait_until(received(sent))
    java_b.ask("leave")
    wait_until(shared(sender, strategy, ours_a.consumer_id, c, ours_d.consumer_id))
    sent += send_to_all(sender, 240, 80)
    wait_until(received(sent))
    ours_a.close()
    wait_until(shared(sender, strategy, c, ours_d.consumer_id))
    sent += send_to_all(sender, 320, 80)
    wait_until(received(sent))
    java_c.ask("leave")
    wait_until(shared(sender, strategy, ours_d.consumer_id))
    assert received(sent)()  # nothing comes twice


def test_a_member_is_killed(
    sender: Client, open_client: OpenClient, open_java: OpenJava, own_java: JavaProcess, zookeeper: Chroot
) -> None:
    inbox, dying = Inbox(), open_java("plain", zookeeper.connect, within=own_java)
    dying_id = dying.subscribe(GROUP, TOPIC, as_id="c")
    ours = join(open_client(), "a", inbox)
    java = open_java()
    java_id = java.subscribe(GROUP, TOPIC, as_id="b")
    wait_until(shared(sender, "default", dying_id, ours.consumer_id, java_id))
    sent = send_to_all(sender, 0, 80)
    wait_until(lambda: len(inbox.messages) + len(java.payloads) + len(dying.payloads) == 80)
    own_java.kill()
    sent += send_to_all(sender, 80, 80)
    wait_until(shared(sender, "default", ours.consumer_id, java_id))
    wait_until(lambda: inbox.payloads.keys() | set(java.payloads) | set(dying.payloads) == set(sent))
    wait_until(lambda: inbox.payloads.keys() | set(java.payloads) >= set(sent[80:]))
    # What was delivered twice the killed one had, and had not committed.
    twice = (inbox.payloads + Counter(java.payloads)) & Counter(dying.payloads)
    assert set(twice) <= set(dying.payloads)
    assert max((inbox.payloads + Counter(java.payloads)).values()) == 1


def test_one_of_ours_is_killed_as_it_holds_partitions(
    sender: Client, open_client: OpenClient, open_java: OpenJava
) -> None:
    """Its session's end is what a Java member waits for."""
    inbox, gone = Inbox(), open_client(session_timeout_ms=4_000)
    ours = join(gone, "a", inbox)
    java = open_java()
    java_id = java.subscribe(GROUP, TOPIC, as_id="b")
    wait_until(shared(sender, "default", ours.consumer_id, java_id))
    gone.session.close()
    wait_until(shared(sender, "default", java_id))
    sent = send_to_all(sender, 0, 16)
    wait_until(lambda: sorted(java.payloads) == sorted(sent))


def test_offsets_are_shared(sender: Client, open_client: OpenClient, open_java: OpenJava) -> None:
    first, second, inbox = open_java(), open_java(), Inbox()
    sent = send_to_all(sender, 0, 80)
    first.subscribe(GROUP, TOPIC, as_id="b")
    wait_until(lambda: sorted(first.payloads) == sorted(sent))
    first.ask("leave")
    nodes = snapshot(sender.session, f"/meta/consumers/{GROUP}/offsets/{TOPIC}")
    last = {str(it.partition): it for it in sender.browse(TOPIC)}
    assert {path.rpartition("/")[2]: data.decode() for path, (data, _) in nodes.items()} == {
        name: f"{it.message_id}-{it.offset + 20 + len(it.payload)}" for name, it in last.items()
    }
    sent = send_to_all(sender, 80, 80)
    ours = join(open_client(), "a", inbox)
    wait_until(lambda: inbox.payloads == Counter(sent))
    ours.close()
    sent = send_to_all(sender, 160, 80)
    second.subscribe(GROUP, TOPIC, as_id="c")
    wait_until(lambda: sorted(second.payloads) == sorted(sent))


def test_commands_see_and_move_java_members(sender: Client, open_java: OpenJava, zookeeper: Chroot) -> None:
    first, second = open_java(), open_java()
    sent = send_to_all(sender, 0, 80)
    member = first.subscribe(GROUP, TOPIC, as_id="b")
    wait_until(lambda: sorted(first.payloads) == sorted(sent))
    first.ask("leave")
    second.subscribe(GROUP, TOPIC, as_id="b")
    send_to_all(sender, 80, 8)
    wait_until(lambda: len(second.payloads) == 8)
    told = run_metaq("groups", "describe", GROUP, "--zk", zookeeper.connect)
    assert (told.returncode, told.stdout.count(member)) == (0, 8), told
    reset = ("groups", "reset", GROUP, "--to", "earliest", "--zk", zookeeper.connect, "--yes")
    refused = run_metaq(*reset)
    assert (refused.returncode, "mixed_b: stop them" in refused.stderr) == (2, True), refused
    second.ask("leave")
    done = run_metaq(*reset)
    assert done.returncode == 0, done
    third = open_java()
    third.subscribe(GROUP, TOPIC, as_id="c")
    wait_until(lambda: len(third.payloads) == 88)
