"""Children watches: one event however much changed, none missed over a lost connection or session."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from zk.embedded.server import EmbeddedZooKeeper
from zk.session.session import ZooKeeperSession
from zk.session.watches import ChildrenChanged, ChildrenWatches

IDS = "/meta/consumers/g/ids"
CHANGED = ChildrenChanged(IDS)


@pytest.fixture
def events() -> SimpleQueue[ChildrenChanged]:
    return SimpleQueue()


@pytest.fixture
def watches(session: ZooKeeperSession, events: SimpleQueue[ChildrenChanged]) -> Iterator[ChildrenWatches]:
    watches = ChildrenWatches(session, events.put)
    yield watches
    watches.stop()


def settle(session: ZooKeeperSession) -> None:
    """Let what is on its way arrive: kazoo delivers watch events in order, before later answers or soon after."""
    session.read("/")
    time.sleep(0.1)


def test_many_changes_are_one_event_until_read_again(
    session: ZooKeeperSession, watches: ChildrenWatches, events: SimpleQueue[ChildrenChanged]
) -> None:
    assert watches.read(IDS) == []
    assert watches.read(IDS) == []  # twice armed, still one event
    for name in ("a", "b", "c"):
        session.create(f"{IDS}/{name}", b"", ephemeral=True)
    assert events.get(timeout=60) == CHANGED
    settle(session)
    assert events.empty()
    assert sorted(watches.read(IDS)) == ["a", "b", "c"]
    session.delete(f"{IDS}/b")
    assert events.get(timeout=60) == CHANGED
    assert sorted(watches.read(IDS)) == ["a", "c"]


def test_data_of_children_is_not_watched(
    session: ZooKeeperSession, watches: ChildrenWatches, events: SimpleQueue[ChildrenChanged]
) -> None:
    session.create(f"{IDS}/a", b"1")
    watches.read(IDS)
    session.write(f"{IDS}/a", b"2")
    settle(session)
    assert events.empty()


def test_expiry_fires_and_reading_arms_again(
    session: ZooKeeperSession,
    watches: ChildrenWatches,
    events: SimpleQueue[ChildrenChanged],
    expire: Callable[[ZooKeeperSession], None],
) -> None:
    watches.read(IDS)
    expire(session)
    assert events.get(timeout=60) == CHANGED
    assert watches.read(IDS) == []
    session.create(f"{IDS}/a")
    assert events.get(timeout=60) == CHANGED


def test_a_lost_connection_fires_and_reading_arms_again(tmp_path: Path, events: SimpleQueue[ChildrenChanged]) -> None:
    with (
        EmbeddedZooKeeper(tmp_path) as server,
        ZooKeeperSession(server.connect, session_timeout_ms=60_000) as session,
    ):
        watches = ChildrenWatches(session, events.put)
        watches.read(IDS)
        server.restart()
        assert events.get(timeout=60) == CHANGED
        assert watches.read(IDS) == []
        session.create(f"{IDS}/a")
        assert events.get(timeout=60) == CHANGED
        watches.stop()


def test_nothing_is_delivered_after_stop(
    session: ZooKeeperSession, watches: ChildrenWatches, events: SimpleQueue[ChildrenChanged]
) -> None:
    watches.read(IDS)
    watches.stop()
    session.create(f"{IDS}/a")
    settle(session)
    session.close()  # fires what is armed
    time.sleep(0.1)
    assert events.empty()
