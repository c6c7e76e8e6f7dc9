"""Clients that run branches side by side until they are killed, and ask for their broker to be killed, at given steps.

    python -m tests.crash.two_phase HISTORY

A nursery: it reads a plan a line, forks a client that carries it out, and prints how that one ended. The client's first
thread is the one that kills; the others are wherever they are at that moment. It says `broker` when the broker is to be
killed, and reads `up` when it is back.
"""

import functools
import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from random import Random

from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from meta_client.protocol.answers import BranchStatus, parse_keys
from meta_client.protocol.requests import Put, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from tests.crash.history import Did, Facts, History, body_of, check_in_doubt, read_history
from tests.crash.workload import PARTITIONS
from tests.fixtures.wire import WireClient

THREADS = 16
QUALIFIER = "two-phase"
REST_S = 0.04  # at most, between two branches of a thread: a bound on what must be read back
ON_THE_WAY_S = 0.003  # at most, from a question to the kill in the midst of it
V = TransactionVerb


class Step(StrEnum):
    """Progress of a two-phase commit. The -ING steps are requested and not answered."""

    LISTED = "listed"  # what is in doubt, after a start
    BEGUN = "begun"
    PUT = "put"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"


class Victim(StrEnum):
    BROKER = "broker"
    CLIENT = "client"
    BOTH = "both"


At = Callable[[Step], None]  # a step is reached
UNDER_WAY = (Step.PREPARING, Step.COMMITTING, Step.ROLLING_BACK)


class Branch:
    """A branch that a thread is working on; *facts* is this life's memory of what the history says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = key_of(name)
        self.facts = Facts()


def key_of(name: str) -> XaKey:
    return XaKey(Xid.of(name, "b"), QUALIFIER)


def name_of(key: object) -> str:
    assert isinstance(key, XaKey)
    return key.xid.gtrid.decode()


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def hear() -> str:
    """The next line on stdin, nothing behind it taken; empty at the end."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


class ClientProcess:
    """One life of the clients: THREADS of them, until its plan kills it."""

    def __init__(self, path: Path, port: int, number: int, seed: str, plan: list[tuple[Victim, Step]]) -> None:
        self._port = port
        self._number = number
        self._seed = seed
        self._plan = plan
        self._path = path
        self._history = History(path)
        self._is_up = threading.Event()
        self._is_up.set()

    def run(self) -> None:
        """Never returns: the plan ends it, or a failure."""
        for number in range(1, THREADS):
            threading.Thread(target=self._guarded, args=(self._work, number), daemon=True).start()
        threading.Thread(target=self._guarded, args=(self._listen,), daemon=True).start()
        self._guarded(self._work, 0)

    def _guarded(self, work: Callable[..., None], *arguments: int) -> None:
        try:
            work(*arguments)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _listen(self) -> None:
        while hear() == "up":
            self._is_up.set()
        os._exit(2)  # the parent is gone

    def _at(self, step: Step, thread: int, count: int) -> None:
        """Kill the process due at *step*, if it is the first thread's turn and the others had time to begin."""
        if thread or not self._plan or self._plan[0][1] is not step or (count < 2 and step is not Step.LISTED):
            return
        victim, _ = self._plan.pop(0)
        if step in UNDER_WAY:
            time.sleep(Random(f"{self._seed}-{count}").uniform(0, ON_THE_WAY_S))
        if victim is not Victim.CLIENT:
            self._is_up.clear()
            say(victim)
        if victim is not Victim.BROKER:
            os.kill(os.getpid(), signal.SIGKILL)
        self._is_up.wait()

    def _work(self, thread: int) -> None:
        random, counts = Random(f"{self._seed}-{thread}"), itertools.count()
        branch: Branch | None = None
        while True:
            self._is_up.wait()
            try:
                client = WireClient(self._port)
            except ConnectionError:
                assert not self._is_up.is_set(), "the broker is away, and nobody killed it"
                continue
            with client:
                try:
                    if thread == 0:
                        self._recover(client, random)
                    if branch is not None:
                        self._resume(client, branch, random)
                    for count in counts:
                        branch = Branch(f"{self._number}-{thread}-{count}")
                        self._one(client, branch, thread, count, random)
                        time.sleep(random.uniform(0, REST_S))
                except ConnectionError:
                    continue

    # -- one branch -------------------------------------------------------------------------------------------

    def _one(self, client: WireClient, branch: Branch, thread: int, count: int, random: Random) -> None:
        at = functools.partial(self._at, thread=thread, count=count)
        client.verb(V.BEGIN, branch.key)
        at(Step.BEGUN)
        for number in range(random.randrange(1, 5)):
            name = random.choice(PARTITIONS)
            self._note(branch, Did.PUT, name)
            client.put(*name, body_of(branch.name, number, random.randrange(1500)), branch.key)
        at(Step.PUT)
        if random.random() < 0.9 or self._wants(thread):
            self._prepare(client, branch, at)
        self._decide(client, branch, self._wants(thread) or random.choice((Did.COMMIT, Did.COMMIT, Did.ROLLBACK)), at)
        if random.random() < 0.3:
            self._plain(client, branch, random.choice(PARTITIONS))

    def _wants(self, thread: int) -> Did | None:
        """Return the step the branch must reach for the next kill."""
        step = self._plan[0][1] if self._plan and not thread else None
        if step in (Step.ROLLING_BACK, Step.ROLLED_BACK):
            return Did.ROLLBACK
        return Did.COMMIT if step is not None else None

    def _prepare(self, client: WireClient, branch: Branch, at: At) -> None:
        self._note(branch, Did.PREPARE)
        self._ask(client, V.PREPARE, branch, lambda: at(Step.PREPARING))
        self._note(branch, Did.PREPARED)
        at(Step.PREPARED)

    def _decide(self, client: WireClient, branch: Branch, decision: Did, at: At) -> None:
        is_commit = decision is Did.COMMIT
        self._note(branch, decision)  # as a coordinator does: the decision is recorded before anything is sent
        verb = V.ROLLBACK if not is_commit else _commit_verb(branch)
        self._ask(client, verb, branch, lambda: at(Step.COMMITTING if is_commit else Step.ROLLING_BACK))
        self._note(branch, Did.COMMITTED if is_commit else Did.ROLLED_BACK)
        at(Step.COMMITTED if is_commit else Step.ROLLED_BACK)

    def _ask(self, client: WireClient, verb: TransactionVerb, branch: Branch, on_the_way: Callable[[], None]) -> None:
        client.send(TransactionCommand(branch.key, "s", verb, None, None, client.opaque()))
        on_the_way()
        answer = client.receive()
        assert isinstance(answer, Result), answer
        assert answer.is_success, f"{verb} {branch.name}: {answer.text}"

    def _plain(self, client: WireClient, branch: Branch, at: PartitionName) -> None:
        name = f"{branch.name}p"
        self._history.note(name, Did.PLAIN, at)
        answer = client.result(Put(*at, 0, None, None, client.opaque(), body_of(name, 0)))
        assert answer.is_success, answer.text
        self._history.note(name, Did.STORED)

    def _note(self, branch: Branch, did: Did, at: PartitionName | None = None) -> None:
        branch.facts.did.add(did)
        self._history.note(branch.name, did, at)

    # -- after a death ----------------------------------------------------------------------------------------

    def _resume(self, client: WireClient, branch: Branch, random: Random) -> None:
        """The broker has died in the midst of *branch*: it must know what it promised, and nothing else of it."""
        facts = branch.facts
        if facts.is_over:
            return
        status = client.verb(V.STATUS, branch.key).decode()
        what = f"{branch.name} is {status} after a crash ({', '.join(sorted(facts.did))})"
        if status == BranchStatus.PREPARED:
            assert facts.may_be_in_doubt(), what
            decision = next(iter(facts.did & {Did.COMMIT, Did.ROLLBACK}), random.choice((Did.COMMIT, Did.ROLLBACK)))
            branch.facts.did.add(Did.PREPARED)
            self._decide(client, branch, decision, lambda step: None)
        elif status == BranchStatus.COMMITTED:
            assert Did.COMMIT in facts.did, what
            self._note(branch, Did.COMMITTED)
        else:
            assert status in (BranchStatus.ROLLED_BACK, BranchStatus.UNKNOWN), what
            assert Did.PREPARED not in facts.did or Did.ROLLBACK in facts.did, what
            self._note(branch, Did.ROLLED_BACK)

    def _recover(self, client: WireClient, random: Random) -> None:
        """Finish some of what earlier lives left in doubt, as a coordinator would."""
        mine = f"{self._number}-"
        listed = [name_of(key) for key in parse_keys(client.verb(V.RECOVER, None, qualifier=QUALIFIER))]
        self._at(Step.LISTED, 0, 0)
        earlier = {name: facts for name, facts in read_history(self._path).items() if not name.startswith(mine)}
        check_in_doubt(earlier, {name for name in listed if not name.startswith(mine)})
        for name in listed:
            if name in earlier and (earlier[name].is_decided or random.random() < 0.7):
                branch = Branch(name)
                branch.facts.did |= earlier[name].did | {Did.PREPARED}
                is_commit = Did.COMMIT in earlier[name].did
                at = functools.partial(self._at, thread=0, count=2)  # a coordinator may die here, too
                self._decide(client, branch, Did.COMMIT if is_commit else Did.ROLLBACK, at)


def _commit_verb(branch: Branch) -> TransactionVerb:
    return V.COMMIT_TWO_PHASE if Did.PREPARED in branch.facts.did else V.COMMIT_ONE_PHASE


def main(path: str) -> None:
    """Fork a client for each plan, one at a time; say how it ended: a signal as a negative number."""
    while plan := hear():
        if plan == "up":  # for a client that is dead
            continue
        told = json.loads(plan)
        if not (child := os.fork()):
            kills = [(Victim(victim), Step(step)) for victim, step in told["plan"]]
            ClientProcess(Path(path), told["port"], told["number"], told["seed"], kills).run()
        _, status = os.waitpid(child, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(sys.argv[1])
