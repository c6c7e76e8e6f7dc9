"""Children watches: one event however much changed, none missed over a lost connection or session."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.zk.session.conftest import Sessions
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.session import ZooKeeperSession
from zk.session.watches import ChildrenChanged, ChildrenWatches

IDS = "/meta/consumers/g/ids"
CHANGED = ChildrenChanged(IDS)
UNTIL = ChildrenChanged("/until")


@pytest.fixture
def events() -> SimpleQueue[ChildrenChanged]:
    return SimpleQueue()


@pytest.fixture
def session(sessions: Sessions) -> ZooKeeperSession:
    return sessions.open()


@pytest.fixture
def watches(session: ZooKeeperSession, events: SimpleQueue[ChildrenChanged]) -> Iterator[ChildrenWatches]:
    watches = ChildrenWatches(session, events.put)
    yield watches
    watches.stop()


def told(session: ZooKeeperSession, events: SimpleQueue[ChildrenChanged]) -> list[ChildrenChanged]:
    """Return the events so far: one of a later change comes after them."""
    session.ensure(UNTIL.path)
    session.children(UNTIL.path, lambda event: events.put(UNTIL))
    session.create(f"{UNTIL.path}/now")
    session.delete(f"{UNTIL.path}/now")
    return list(iter(lambda: events.get(timeout=60), UNTIL))


def test_many_changes_are_one_event_until_read_again(
    session: ZooKeeperSession, watches: ChildrenWatches, events: SimpleQueue[ChildrenChanged]
) -> None:
    assert watches.read(IDS) == []
    assert watches.read(IDS) == []  # twice armed, still one event
    for name in ("a", "b", "c"):
        session.create(f"{IDS}/{name}", b"", ephemeral=True)
    assert told(session, events) == [CHANGED]
    assert sorted(watches.read(IDS)) == ["a", "b", "c"]
    session.write(f"{IDS}/a", b"data is not watched")
    assert told(session, events) == []
    session.delete(f"{IDS}/b")
    assert told(session, events) == [CHANGED]
    assert sorted(watches.read(IDS)) == ["a", "c"]


def test_expiry_fires_and_reading_arms_again(
    sessions: Sessions, session: ZooKeeperSession, watches: ChildrenWatches, events: SimpleQueue[ChildrenChanged]
) -> None:
    watches.read(IDS)
    sessions.expire(session)
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
    assert told(session, events) == []
