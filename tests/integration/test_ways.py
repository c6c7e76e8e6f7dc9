"""Ways of a put, a fetch and a branch through the product: docs/architecture.md lists the files a traced run enters."""

import itertools
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from journal.records.xid import Xid
from meta_client import core
from meta_client.client import Client
from tests.fixtures.broker import CONFIG
from tests.fixtures.call_stacks import CallStacks, Stack, TracedBroker
from zk.embedded.chroot import Chroot

DOCUMENT: Final = Path(__file__).parents[2] / "docs/architecture.md"
# Files whose stacks belong to a way: called by users, sockets and the disk. Others begin by a timer, or are about
# ZooKeeper.
ROOTS: Final = frozenset(
    {
        "journal/wal/log_writer.py",
        "meta_broker/net/busy_poll.py",
        "meta_broker/net/connection.py",
        "meta_broker/net/server.py",
        "meta_client/consumer/consumer.py",
        "meta_client/consumer/fetcher.py",
        "meta_client/net/connection.py",
        "meta_client/producer/producer.py",
    }
)
FETCH: Final = "meta_broker/handlers/fetch.py"
CONNECTION: Final = "meta_broker/net/connection.py"
DECODING: Final = ("meta_broker/net/request_receiver.py", "meta_client/protocol/")
SERVER: Final = "meta_broker/net/server.py"
VALUES: Final = ("journal/records/", "meta_client/protocol/", "zk/tree/")
LISTED: Final = re.compile(r"^(Leaves|Values) \(\d+\): ([^.]*(?:\.\w+`[^.]*)*)\.$", re.MULTILINE)
LISTED_COUNT: Final = re.compile(r"^(?:Leaves|Values) \((\d+)\): ", re.MULTILINE)
ROUNDS: Final = 20


class Traced:
    """A client and a broker, and what they call."""

    def __init__(self, client: Client, here: CallStacks, broker: TracedBroker) -> None:
        self.client = client
        self.broker = broker
        self._here = here

    def way(self, once: Callable[[], object]) -> set[Stack]:
        """Return the stacks of doing *once* some times, after a first time that connects and asks for versions."""
        once()
        self._here.clear()
        self.broker.clear()
        for _ in range(ROUNDS):
            once()
        return {stack for stack in self._here.recorded() | self.broker.recorded() if stack[0] in ROOTS}


@pytest.fixture
def traced(tmp_path: Path, zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    monkeypatch.setattr(core, "core", None)  # as in the broker
    config = CONFIG.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 3600.0")  # a checkpoint is no way's
    here, broker = CallStacks(), TracedBroker(tmp_path / "broker", zookeeper.connect, config=config)
    try:
        broker.start()
        here.install()
        with Client(zookeeper.connect) as client:
            yield Traced(client, here, broker)
    finally:
        here.uninstall()
        broker.end()


def put(traced: Traced) -> set[Stack]:
    producer = traced.client.producer()
    return traced.way(lambda: producer.send("meta-test", b"hello"))


def branch(traced: Traced) -> set[Stack]:
    producer, numbers = traced.client.producer(), itertools.count()

    def once() -> None:
        producer.tpc_begin(Xid.of(f"way-{next(numbers)}", "mq"), ["meta-test"])
        producer.send("meta-test", b"hello")
        assert producer.tpc_prepare()
        producer.tpc_commit()

    return traced.way(once)


def fetch(traced: Traced) -> set[Stack]:
    """A long poll that a put by another client answers."""
    with traced.client.consumer("group") as consumer, traced.broker.client() as other:
        consumer.subscribe("meta-test")
        consumer.start()

        def once() -> None:
            other.put("meta-test", 0, b"hello")
            assert consumer.fetch(1, timeout_s=60)

        once()
        stacks = traced.way(once)
    # The broker stores the messages meanwhile. Of that only what ends in a fetch belongs to it, from where the high
    # watermark has moved: on the loop, or after a word from the writer thread.
    stacks = {stack[stack.index(SERVER) :] if SERVER in stack else stack for stack in stacks}
    return {
        stack
        for stack in stacks
        if stack[0].startswith("meta_client")
        or FETCH in stack
        or (stack[0] == CONNECTION and all(name.startswith(DECODING) for name in stack[1:]))
    }


@pytest.mark.parametrize(
    ("title", "walk", "steps_max"),
    [("A put: ", put, 25), ("A fetch: ", fetch, 20), ("A branch: ", branch, 22)],
    ids=["put", "fetch", "branch"],
)
def test_the_document_lists_the_files_that_are_entered(
    traced: Traced, title: str, walk: Callable[[Traced], set[Stack]], steps_max: int
) -> None:
    stacks = walk(traced)
    entered = {name for stack in stacks for name in stack}
    values = {name for name in entered if name.startswith(VALUES)}
    callers = {caller for stack in stacks for caller, callee in pairwise(stack) if callee not in values}
    assert not callers & values, "a value calls something else"
    section = DOCUMENT.read_text().partition(f"### {title}")[2].partition("\n#")[0]
    steps = re.findall(r"^\d+\. `(\S+)`: ", section, re.MULTILINE)
    listed = {name: set(re.findall(r"`(\S+)`", rest)) for name, rest in LISTED.findall(section)}
    assert {"not listed": callers - set(steps), "not entered": set(steps) - callers} == {
        "not listed": set(),
        "not entered": set(),
    }
    assert len(steps) == len(set(steps)), "a file stands twice"
    assert listed["Leaves"] ^ (entered - callers - values) == set()
    assert listed["Values"] ^ values == set()
    assert LISTED_COUNT.findall(section) == [str(len(listed["Leaves"])), str(len(values))]
    assert len(steps) <= steps_max
