"""Sessions: alike on a real server and in memory, where users' unit tests run."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.tree import Tree
from tests.zk.session.conftest import Sessions
from zk.embedded.chroot import Chroot
from zk.errors import RefusedNode, ZooKeeperError, ZooKeeperUnavailable
from zk.session.session import PIPELINE_MAX, SessionEvent, SessionState, ZooKeeperSession
from zk.tree.nodes import Node
from zk.tree.paths import InvalidName
from zk.tree.transactions import (
    Check,
    Create,
    NodeTransaction,
    Operation,
    RefusalReason,
    Remove,
    TransactionRefused,
    Write,
)

WAIT_S = 60


class Told:
    """Names of watches, in the order in which they were called."""

    def __init__(self, session: ZooKeeperSession, writer: ZooKeeperSession) -> None:
        self._session = session
        self._writer = writer
        self._names = SimpleQueue[str]()
        writer.ensure("/until")

    def watch(self, name: str) -> Callable[[Any], None]:
        return lambda event: self._names.put(name)

    def names(self) -> list[str]:
        """Return those told so far: a later change is told after them."""
        self._session.children("/until", self.watch("until"))
        self._writer.create(f"/until/{random.randrange(2**64)}")
        return list(iter(lambda: self._names.get(timeout=WAIT_S), "until"))


@pytest.fixture
def session(sessions: Sessions) -> ZooKeeperSession:
    return sessions.open()


@pytest.fixture
def other(sessions: Sessions) -> ZooKeeperSession:
    return sessions.open()


@pytest.fixture
def told(session: ZooKeeperSession, other: ZooKeeperSession) -> Told:
    return Told(session, other)


# -- nodes ----------------------------------------------------------------------------------------------------------


def test_nodes_are_created_read_changed_and_deleted(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    assert session.read("/a/b") is None
    assert session.children("/a") == []
    assert session.create("/a/b", b"1")
    assert not other.create("/a/b", b"2")
    assert other.read("/a/b") == Node(b"1", 0, 0)
    session.write("/a/b", b"3")
    other.write("/a/c/d", b"4")
    assert session.read_many(["/a", "/a/b", "/a/c/d", "/x"]) == {
        "/a": Node(b"", 0, 0),
        "/a/b": Node(b"3", 0, 1),
        "/a/c/d": Node(b"4", 0, 0),  # written once, not made and then set
    }
    assert sorted(session.children("/a")) == ["b", "c"]
    assert session.update_many({"/a/b": b"5", "/a/x": b"6"}) == ["/a/x"]
    assert not session.delete("/a/c")  # not empty
    assert not session.delete("/a/b", version=1)  # changed since
    assert session.delete("/a/b", version=2)
    assert not session.delete("/a/b")
    session.ensure("/a/c")
    assert session.create("/none", None)
    assert session.read("/none") == Node(b"", 0, 0)
    assert (session.is_open("/none"), session.is_open("/a/b")) == (True, False)


def test_compare_and_set(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    assert session.exchange("/a/b", b"1", 0) is None
    assert session.exchange("/a/b", b"1", None) == 0
    assert other.exchange("/a/b", b"2", None) is None
    assert other.exchange("/a/b", b"2", 0) == 1
    assert session.exchange("/a/b", b"3", 0) is None
    assert session.exchange("/a/b", b"4", -1) == 2
    assert session.read("/a/b") == Node(b"4", 0, 2)


def test_many_nodes_are_written_and_read_in_one_go(session: ZooKeeperSession) -> None:
    session.create("/many/7", b"old")
    data = {f"/many/{i}": b"%d" % i for i in range(2 * PIPELINE_MAX + 1)}
    session.write_many(data)
    assert {path: node.data for path, node in session.read_many(data).items()} == data


def test_ephemeral_nodes_end_with_their_session(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    assert other.create("/e/one", b"x", ephemeral=True)
    assert other.create("/e/two", b"x", ephemeral=True)
    assert session.read("/e/one") == Node(b"x", other.session_id, 0)
    assert other.session_id != session.session_id
    session.write("/e/one", b"y")
    assert session.delete("/e/two")
    other.close()
    assert session.children("/e") == []
    assert session.read("/e") == Node(b"", 0, 0)


def test_an_ephemeral_node_has_no_children(session: ZooKeeperSession) -> None:
    session.create("/e", b"", ephemeral=True)
    refused = r"refused /e/c \(NoChildrenForEphemeralsError\)"
    for verb in (session.create, session.ensure):
        for path in ("/e/c", "/e/c/d"):
            with pytest.raises(ZooKeeperError, match=refused):
                verb(path)
    with pytest.raises(ZooKeeperError, match=refused):
        session.write("/e/c", b"")
    (outcome,) = session.transact_each([(Create("/e/c", b""),)])
    assert isinstance(outcome, RefusedNode)
    assert session.children("/e") == []


def test_the_root(session: ZooKeeperSession) -> None:
    assert not session.create("/")
    session.ensure("/")
    session.create("/a")
    assert session.children("/") == ["a"]
    assert not session.delete("/")


def verbs(session: ZooKeeperSession, path: str) -> list[Callable[[], object]]:
    return [
        lambda: session.read(path),
        lambda: session.read_many([path]),
        lambda: session.children(path),
        lambda: session.create(path),
        lambda: session.create(path, b"", ephemeral=True),
        lambda: session.ensure(path),
        lambda: session.write(path, b""),
        lambda: session.update_many({path: b""}),
        lambda: session.exchange(path, b"", None),
        lambda: session.exchange(path, b"", 0),
        lambda: session.is_open(path),
        lambda: session.delete(path),
        lambda: session.transact_each([(Check(path, 0),)]),
    ]


@pytest.mark.parametrize(
    "path", ["/a\0", "/a\x1f/b", "/\x7f", "/\x9f", "/\ud800", "/\ue000", "/\ufff0", "/😀", "/.", "/a/../b", "/./a"]
)
def test_a_path_that_zookeeper_cannot_have(session: ZooKeeperSession, path: str) -> None:
    for verb in verbs(session, path):
        with pytest.raises(InvalidName, match="cannot be a path in ZooKeeper"):
            verb()
    assert session.create("/a")  # its connection lives on


@pytest.mark.parametrize("path", ["/ü", "/日本", "/a b", "/a\xa0b", "/豈", "/\uffef", "/...", "/.a", "/%2F"])
def test_other_paths(session: ZooKeeperSession, other: ZooKeeperSession, path: str) -> None:
    assert session.create(f"{path}{path}", path.encode())
    assert other.children("/") == [path[1:]]
    assert other.children(path) == [path[1:]]
    assert other.read(f"{path}{path}") == Node(path.encode(), 0, 0)
    assert session.read(f"/{path}//{path}/") == Node(path.encode(), 0, 0)


def test_a_request_of_a_mebibyte_is_cut_off(session: ZooKeeperSession) -> None:
    assert session.create("/large", bytes(1_040_000))
    session_id, large = session.session_id, bytes(1024 * 1024)
    halves: NodeTransaction = (Create("/x", large[::2]), Create("/y", large[::2]))
    for verb in (lambda: session.create("/x", large), lambda: session.transact_each([halves])):
        with pytest.raises(
            ZooKeeperUnavailable, match=r"did not answer for /x \(ConnectionLoss\).*maxbuffer.* 1,048,5"
        ):
            verb()
    with pytest.raises(ZooKeeperUnavailable, match=r"jute\.maxbuffer.* 1,048,576$"):
        session.write_many({"/large": b"small", "/x": large})
    session.write("/large", bytes(1_040_000))
    with pytest.raises(ZooKeeperUnavailable, match=r"jute\.maxbuffer.* 1,048,576$"):
        session.exchange("/large", large, -1)
    assert list(session.read_many(["/x", "/y", "/large"])) == ["/large"]
    assert session.session_id == session_id


# -- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (Create("/a", b""), RefusalReason.EXISTS),
        (Create("/x/y", b""), RefusalReason.MISSING),
        (Write("/x", b""), RefusalReason.MISSING),
        (Write("/a", b"", 1), RefusalReason.VERSION),
        (Remove("/x", -1), RefusalReason.MISSING),
        (Remove("/a", 1), RefusalReason.VERSION),
        (Remove("/a", 0), RefusalReason.EXISTS),
        (Check("/x", -1), RefusalReason.MISSING),
        (Check("/a", 1), RefusalReason.VERSION),
    ],
)
def test_a_transaction_does_all_or_nothing(
    session: ZooKeeperSession, told: Told, refused: Operation, reason: RefusalReason
) -> None:
    session.create("/a/b", b"old")
    session.children("/a", told.watch("/a"))
    done: NodeTransaction = (Create("/a/new", b"1"), Write("/a/b", b"2", 0), Write("/a/b", b"3", 1), Check("/a", 0))
    last = Check("/nowhere", 0)
    assert session.transact_many([(*done, refused, last), (last,)]) == [
        TransactionRefused(refused, reason),
        TransactionRefused(last, RefusalReason.MISSING),
    ]
    assert session.children("/a") == ["b"]
    assert session.read("/a/b") == Node(b"old", 0, 0)
    assert told.names() == []
    assert session.transact_many([done, (Remove("/a/new", 0), Create("/a/new", b"", ephemeral=True))]) == [None, None]
    assert session.read("/a/b") == Node(b"3", 0, 2)
    assert session.read("/a/new") == Node(b"", session.session_id, 0)
    assert told.names() == ["/a"]
    assert session.transact_many([]) == []
    assert session.transact_many([(), (last,), (), done]) == [
        None,
        TransactionRefused(last, RefusalReason.MISSING),
        None,
        TransactionRefused(done[0], RefusalReason.EXISTS),
    ]


# -- watches --------------------------------------------------------------------------------------------------------


def test_a_watch_is_called_once_for_children_that_come_or_go(
    session: ZooKeeperSession, other: ZooKeeperSession, told: Told
) -> None:
    session.ensure("/w/a")
    session.children("/w", told.watch("1"))
    other.write("/w", b"data")
    other.write("/w/a", b"data")
    other.create("/w/a/grandchild")
    assert told.names() == []
    other.create("/w/b")
    other.create("/w/c")
    assert told.names() == ["1"]
    session.children("/w", told.watch("2"))
    session.delete("/w/b")  # its own change
    assert told.names() == ["2"]
    assert session.children("/missing", told.watch("never")) == []
    other.create("/missing/a")
    assert told.names() == []


def test_a_watch_that_is_set_twice_is_called_once_a_path(
    session: ZooKeeperSession, other: ZooKeeperSession, told: Told
) -> None:
    watch = told.watch("w")
    for path in ("/1", "/2"):
        session.ensure(path)
        session.children(path, watch)
        session.children(path, watch)
    other.create("/1/a")
    assert told.names() == ["w"]
    other.create("/2/a")
    assert told.names() == ["w"]


def test_watches_are_called_in_the_order_of_changes(
    session: ZooKeeperSession, other: ZooKeeperSession, told: Told
) -> None:
    paths = [f"/w/{number}" for number in range(50)]
    for path in paths:
        session.ensure(path)
        session.children(path, told.watch(path))
    random.shuffle(paths)
    for path in paths:
        other.create(f"{path}/a")
    assert told.names() == paths
    session.children("/w", told.watch("parent"))
    session.children(paths[0], told.watch("itself"))
    other.transact_each([(Remove(f"{paths[0]}/a", -1), Remove(paths[0], -1))])
    assert told.names() == ["itself", "parent"]


def test_many_watches_of_one_node_and_a_bad_one(session: ZooKeeperSession, other: ZooKeeperSession, told: Told) -> None:
    def fail(event: object) -> None:
        raise ValueError("a watch of the test")

    session.ensure("/w")
    session.children("/w", fail)
    names = {f"{number}" for number in range(100)}
    for name in names:
        session.children("/w", told.watch(name))
    assert other.create("/w/a")
    assert set(told.names()) == names


def test_a_watch_may_read_and_change(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    seen = SimpleQueue[list[str]]()

    def again(event: object) -> None:
        children = session.children("/w", again)
        seen.put(children)
        if len(children) < 5:
            session.create(f"/w/{len(children)}")

    session.ensure("/w")
    session.children("/w", again)
    other.create("/w/0")
    assert [len(seen.get(timeout=WAIT_S)) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_watch_holds_up_no_other_thread(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    """Not even one that makes a node with its parents."""
    read = threading.Event()

    def wait(event: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(other.read, "/").result(WAIT_S)
        read.set()

    session.children("/", wait)
    other.create("/a/b/c")
    assert read.wait(WAIT_S)


def test_ephemeral_nodes_that_end_are_told(
    session: ZooKeeperSession, other: ZooKeeperSession, sessions: Sessions
) -> None:
    third = sessions.open()
    third.create("/e/a", b"", ephemeral=True)
    told = Told(session, other)
    session.children("/e", told.watch("/e"))
    third.close()
    assert told.names() == ["/e"]
    assert session.children("/e") == []


# -- the end --------------------------------------------------------------------------------------------------------


def test_a_closed_session_is_unavailable(session: ZooKeeperSession, other: ZooKeeperSession, told: Told) -> None:
    closed = other
    closed.ensure("/w")
    closed.children("/w", told.watch("never"))
    assert (closed.is_connected, closed.lease.is_valid()) == (True, True)
    closed.close()
    closed.close()
    assert (closed.is_connected, closed.lease.is_valid()) == (False, False)
    for verb in verbs(closed, "/a"):
        with pytest.raises(ZooKeeperUnavailable, match=r"did not answer for /a \(ConnectionClosedError\)"):
            verb()
    with pytest.raises(ZooKeeperUnavailable, match="not connected to ZooKeeper at"):
        assert closed.session_id
    assert closed.read_many([]) == {}
    session.create("/w/a")
    closed.start()
    assert closed.create("/mine", b"", ephemeral=True)
    assert (closed.is_connected, closed.lease.is_valid(), closed.epoch) == (True, True, 2)
    assert told.names() == []


def test_expiry_is_told_and_counted(sessions: Sessions, other: ZooKeeperSession) -> None:
    events = SimpleQueue[SessionEvent]()
    session = sessions.open(enqueue=events.put)
    told = Told(session, other)
    former = session.session_id
    session.create("/mine", b"", ephemeral=True)
    session.children("/", told.watch("/"))
    sessions.expire(session)
    assert [events.get(timeout=WAIT_S) for _ in range(4)] == [
        SessionEvent(SessionState.CONNECTED, 1),
        SessionEvent(SessionState.SUSPENDED, 1),
        SessionEvent(SessionState.LOST, 1),
        SessionEvent(SessionState.CONNECTED, 2),
    ]
    assert session.read("/mine") is None
    assert session.session_id != former
    assert (session.is_connected, session.lease.is_valid(), session.epoch) == (True, True, 2)
    assert told.names() == ["/"]  # once: the watch ended with the session
    other.create("/later")
    assert told.names() == []
    session.close()
    assert events.empty()


def test_an_expired_session_has_no_lease(sessions: Sessions) -> None:
    leases = SimpleQueue[bool]()
    opened: list[ZooKeeperSession] = []

    def enqueue(event: SessionEvent) -> None:
        if event.state is not SessionState.CONNECTED:
            leases.put(opened[0].lease.is_valid())

    opened.append(sessions.open(enqueue=enqueue))
    sessions.expire(opened[0])
    assert [leases.get(timeout=WAIT_S) for _ in range(2)] == [True, False]  # suspended, and lost


# -- both, step by step ---------------------------------------------------------------------------------------------


def act(session: ZooKeeperSession, dice: random.Random) -> object:
    """One random step, and all that can be seen of it."""
    path = "/" + "/".join(dice.choice("abe") for _ in range(dice.randint(1, 3)))
    data = dice.randbytes(3)
    version = dice.choice([-1, 0, 1])
    match dice.randrange(8):
        case 0:
            return session.create(path, data)
        case 1:
            return session.create(f"{path}/e", data, ephemeral=True)
        case 2:
            return session.delete(path, version)
        case 3:
            return session.exchange(path, data, dice.choice([None, 0, 1]))
        case 4:
            session.write(path, data)
            return session.read(path) is not None
        case 5:
            return session.update_many({path: data})
        case 6:
            operations: list[Operation] = [Check(path, version), Write(path, data, version), Create(f"{path}/c", data)]
            operations += [Remove(path, version), Remove(f"{path}/c", version), Create(f"{path}/e", data, True)]
            return [str(outcome) for outcome in session.transact_each([tuple(dice.sample(operations, 2))])]
        case _:
            node = session.read(path)
            seen = None if node is None else (node.data, bool(node.session_id), node.version)
            return seen, sorted(session.children(path))


def outcome_of(session: ZooKeeperSession, dice: random.Random) -> object:
    try:
        return act(session, dice)
    except ZooKeeperError as error:
        return type(error), str(error).replace(session.connect, "")


def test_the_tree_in_memory_does_what_zookeeper_does(zookeeper: Chroot) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with ZooKeeperSession(zookeeper.connect, session_timeout_ms=60_000) as real, MemorySession(Tree()) as memory:
        both = (real, random.Random(seed)), (memory, random.Random(seed))
        for step in range(400):
            first, second = (outcome_of(session, dice) for session, dice in both)
            assert first == second, f"step {step}"
