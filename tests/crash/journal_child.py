"""A process that appends to a journal until it is killed, saying on stdout what it does and what it was told.

    python -m tests.crash.journal_child DIR SEED FLUSH NUMBER

One line a step, written at once: `ready`; `sent <event>` before a record is appended; `appended <LSN>`, where it
ends; `acknowledged <LSN>`: every record that ends there or before will be found, or the journal is broken.
"""

import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from random import Random

from journal.records.states import BranchState
from journal.records.xid import LocalKey
from journal.state.live_branch import LiveBranch
from journal.state.relocation import read_chunk, relocation_chunks
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.flush_mode import FlushMode
from journal.wal.open_journal import JournalConfig
from journal.wal.storage import DirectoryStorage
from tests.fixtures.journals import IDENTITY, ORDERS, STOCK, xa
from tests.fixtures.ledger import Verb

SEGMENT_BYTES = 32 * 1024


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # less than a pipe takes in one piece


class Child:
    """Random verbs on one store. Branch numbers are never reused, across lives either."""

    def __init__(self, store: JournalTransactionStore, random: Random, number: int) -> None:
        self.store = store
        self.random = random
        self.numbers = itertools.count(number)
        # Of an earlier life: the key tells the number.
        self.live: dict[int, LiveBranch] = {int(key.xid.gtrid): live for key, live in store.transactions.items()}

    def step(self) -> None:
        random, store = self.random, self.store
        number = next(self.numbers)
        data = b"<%d %s>" % (number, b"." * random.choice((0, 10, 500, 5000)))
        name = random.choice((ORDERS, STOCK))
        roll = random.random()
        if roll < 0.3:
            say_sent(Verb.PUT, name=name, data=data)
            say("appended", store.put(name, [data], len(data), 1).lsn)
        elif roll < 0.5 or not self.live:
            key = xa(str(number)) if random.random() < 0.8 else LocalKey("session", number)
            self.live[number] = store.begin(key)
            self.put_to(number, data)
        elif roll < 0.52:
            checkpoint = store.snapshot()
            store.on_checkpoint(store.write_checkpoint(checkpoint, {}), checkpoint)
        elif roll < 0.56 and store.state.branches:
            self.relocate()
        else:
            self.go_on_with(random.choice(list(self.live)), data)

    def put_to(self, branch: int, data: bytes) -> None:
        live, name = self.live[branch], self.random.choice((ORDERS, STOCK))
        say_sent(Verb.TX_PUT, branch, live, name, data)
        say("appended", self.store.transactional_put(live, name, [data], len(data), 1))

    def relocate(self) -> None:
        """The branch furthest behind, to its end or not: no event, for nothing that counts changes."""
        planned = list(
            relocation_chunks(next(iter(self.store.state.branches.values())), self.store.journal.body_bytes_max)
        )
        for chunk in planned[: self.random.randrange(1, len(planned) + 1)]:
            self.store.relocate(chunk, read_chunk(self.store.journal, chunk))

    def go_on_with(self, branch: int, data: bytes) -> None:
        live = self.live[branch]
        is_prepared = live.state is BranchState.PREPARED
        if not is_prepared and self.random.random() < 0.3:
            self.put_to(branch, data)
        elif not is_prepared and not isinstance(live.key, LocalKey) and self.random.random() < 0.6:
            say_sent(Verb.PREPARE, branch, live)
            say("appended", self.store.prepare(live)[1])
        elif self.random.random() < 0.7:
            say_sent(Verb.COMMIT, branch, live)
            say("appended", self.store.commit(self.live.pop(branch), one_phase=not is_prepared).lsn)
        else:
            say_sent(Verb.ROLLBACK, branch, live)
            say("appended", self.store.rollback(self.live.pop(branch)))


def say_sent(
    verb: Verb, branch: int = 0, live: LiveBranch | None = None, name: object = None, data: bytes = b""
) -> None:
    key = None if live is None else str(live.key)
    say("sent", json.dumps({"verb": verb.name, "branch": branch, "key": key, "name": name, "data": data.decode()}))


def main(directory: str, seed: str, flush: str, number: str) -> None:
    storage = DirectoryStorage.open_for_writing(Path(directory))
    config = JournalConfig(segment_bytes=SEGMENT_BYTES, flush=FlushMode.parse(flush))
    store = JournalTransactionStore.open(storage, IDENTITY, config, version="child")
    child = Child(store, Random(int(seed)), int(number))
    say("ready")
    told = 0
    while True:
        child.step()
        if child.random.random() < 0.2:
            store.journal.wait_flushed(store.journal.end)
        if (acknowledged := store.journal.acknowledged_here) > told:
            told = acknowledged
            say("acknowledged", told)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: nobody is left to kill this process
        main(*sys.argv[1:])
