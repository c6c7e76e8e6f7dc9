"""Whole lives of branches up to a restart, and what it finds: stored once, in doubt, or nothing (spec 13.4)."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.outcomes import Outcome
from journal.records.states import XaCode
from journal.records.xid import BranchKey, LocalKey, XaKey
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import ORDERS, Index, open_store, xa

Restart = Callable[[JournalTransactionStore, FaultyStorage], FaultyStorage]


def stop(store: JournalTransactionStore, storage: FaultyStorage) -> FaultyStorage:
    store.close()
    return storage


def power_cut(cut: PowerCut) -> Restart:
    def restart(store: JournalTransactionStore, storage: FaultyStorage) -> FaultyStorage:
        store.journal.wait_flushed(store.journal.end)
        left = storage.after_power_cut(cut, Random(1))
        with contextlib.suppress(StorageFailed):
            store.close()
        return left

    return restart


RESTARTS: dict[str, Restart] = {"stop": stop} | {cut.name: power_cut(cut) for cut in PowerCut}


@dataclass
class Stage:
    """A store that a script of verbs plays on. *checkpoints*: one after every verb."""

    storage: FaultyStorage = field(default_factory=lambda: FaultyStorage(Random(0)))
    checkpoints: bool = False
    live: dict[str, LiveBranch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.start()

    def start(self) -> None:
        self.index = Index()
        self.store = open_store(self.storage, sink=self.index)
        self.live = {}
        for branch in self.store.recover():
            assert isinstance(branch.key, XaKey)
            self.live[branch.key.xid.gtrid.decode()] = branch

    def play(self, script: str) -> None:
        for word in script.split():
            name, verb = word.split(":")
            self.verb(name, verb)
            if self.checkpoints:
                self.store.write_checkpoint(self.store.snapshot(), {})

    def verb(self, name: str, verb: str) -> None:
        store = self.store
        if name not in self.live:
            self.live[name] = store.begin(LocalKey(name, 1) if name.isupper() else xa(name))
        branch = self.live[name]
        match verb:
            case "put":
                data = f"<{name}{next(self.numbers)}>".encode()
                store.transactional_put(branch, ORDERS, [data], len(data), 1)
            case "prepare":
                assert store.prepare(branch)[0] is XaCode.XA_OK
            case "commit":
                one_phase = branch.state.name != "PREPARED"
                self.index.publish_all(store.commit(branch, one_phase=one_phase).updates)
            case "rollback":
                store.rollback(branch)

    def restart(self, restart: Restart) -> None:
        self.storage = restart(self.store, self.storage)
        self.start()

    @property
    def stored(self) -> bytes:
        self.store.journal.wait_flushed(self.store.journal.end)
        return self.index.read(self.store.journal.segments).get(ORDERS, b"")

    @property
    def in_doubt(self) -> list[BranchKey]:
        assert len(self.store.state.branches) == len(self.store.transactions) == self.store.live_count
        return [branch.key for branch in self.store.recover()]


@dataclass(frozen=True)
class RestartCase:
    """Verbs before a restart, the bytes stored after it, and the branches in doubt then."""

    scenario: str
    script: str
    stored: bytes = b""
    in_doubt: tuple[str, ...] = ()


# a is an XA branch, A a local transaction. Every put is a message of its own, numbered.
CASES = [
    RestartCase("U02", "A:put A:rollback"),
    RestartCase("U09", "a:put a:prepare a:rollback"),
    RestartCase("U13 XA", "a:put a:put a:rollback"),
    RestartCase("U13 local", "A:put A:put A:rollback"),
    RestartCase("U14 XA", "a:put a:put b:put"),
    RestartCase("U14 local", "A:put B:put A:put"),
    RestartCase("U15 XA", "a:put a:put a:commit", b"<a1><a2>"),
    RestartCase("U15 local", "A:put A:put A:commit", b"<A1><A2>"),
    RestartCase("U17", "a:put a:put a:prepare a:commit", b"<a1><a2>"),
    RestartCase("U18", "a:put a:put a:prepare a:rollback"),
    RestartCase("U19", "a:put a:put a:prepare", b"", ("a",)),
    RestartCase("side by side", "a:put B:put c:put a:put c:prepare B:commit d:put a:commit", b"<B2><a1><a4>", ("c",)),
]


@pytest.mark.scenario("U02", "U09", "U13", "U14", "U15", "U17", "U18", "U19")
@pytest.mark.parametrize("restart", RESTARTS.values(), ids=RESTARTS)
@pytest.mark.parametrize("checkpoints", [False, True], ids=["journal alone", "checkpoints"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.scenario)
def test_what_a_restart_finds(case: RestartCase, checkpoints: bool, restart: Restart) -> None:
    stage = Stage(checkpoints=checkpoints)
    stage.play(case.script)
    for _ in range(2):  # the second one finds what the first has made of it
        stage.restart(restart)
        assert stage.stored == case.stored
        assert stage.in_doubt == [xa(name) for name in case.in_doubt]
    stage.store.close()


@pytest.mark.scenario("U08", "U19")
@pytest.mark.parametrize("restart", RESTARTS.values(), ids=RESTARTS)
def test_a_branch_is_listed_from_its_prepare_to_its_commit(restart: Restart) -> None:
    """U08: for its own qualifier and for none; a restart changes nothing; the commit stores both messages, once."""
    stage = Stage()
    stage.play("a:put a:put")
    assert stage.store.recover() == []
    stage.play("a:prepare")
    for _ in range(2):
        assert [[branch.key for branch in stage.store.recover(name)] for name in (None, "test", "other")] == [
            [xa("a")],
            [xa("a")],
            [],
        ]
        assert stage.stored == b""
        stage.restart(restart)
    stage.play("a:commit")
    for _ in range(2):
        assert stage.store.recover() == []
        assert stage.stored == b"<a1><a2>"
        stage.restart(restart)
    stage.store.close()


@pytest.mark.scenario("U14")
@pytest.mark.parametrize("restart", RESTARTS.values(), ids=RESTARTS)
def test_what_was_presumed_aborted_says_so(restart: Restart) -> None:
    """A later STATUS answers that the branch was rolled back, not that it is unknown (U14)."""
    stage = Stage()
    stage.play("a:put b:put b:prepare")
    stage.restart(restart)
    assert [(ended.key, ended.outcome) for ended in stage.store.state.outcomes] == [(str(xa("a")), Outcome.ROLLED_BACK)]
    stage.store.close()


@pytest.mark.scenario("U20")
def test_a_checkpoint_begins_where_the_oldest_live_branch_does() -> None:
    """U20: it names the branches that are not over, each with where its first record stands, and no others."""
    stage = Stage()
    stage.play("over:put a:put over:commit b:put a:prepare over2:put over2:rollback")
    branches = [stage.live[name].branch for name in ("a", "b")]
    checkpoint = stage.store.snapshot()
    assert [(entry.key, entry.first_lsn, entry.state) for entry in checkpoint.branches] == [
        (str(branch.key), branch.first_lsn, state)
        for branch, state in zip(branches, ("PREPARED", "IN_USE"), strict=True)
        if branch is not None
    ]
    assert checkpoint.lsn == stage.store.journal.end
    stage.store.close()
