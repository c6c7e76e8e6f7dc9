"""Cost of a large checkpoint to the broker's clients: the longest time without a reply."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from bench.peer import Peer
from bench.recovery import directory_for, prepare_branches, serving, store_in
from bench.result import Result
from journal.records.producer_state import BatchSequence
from journal.records.record import PartitionName
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.answers import parse_checkpoint_taken
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Put, TakeCheckpoint, Version

BRANCHES = 100_000
PARTITIONS = 5_000
PRODUCERS = 20_000  # as many as a broker remembers, each with
BATCHES = 8  # batches, as many as it remembers of one
ROUNDS = 3
QUIET_S = 2.0


class Pinger:
    """Requests the version continuously, in its own thread, and records the longest time to a reply."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._peer = Peer(address)
        self._worst_s = 0.0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Pinger":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._peer.close()

    def worst_during(self, action: Callable[[], object]) -> float:
        """Return the longest time to a reply during *action*, in seconds."""
        self._worst_s = 0.0
        action()
        time.sleep(0.05)  # so that the request in flight at the end counts, too
        return self._worst_s

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            started = time.perf_counter()
            self._peer.ask(Version(1))
            self._worst_s = max(self._worst_s, time.perf_counter() - started)
            time.sleep(0.0005)


def longest_silence(case: str) -> Result:
    """Measure the worst of several checkpoints, in milliseconds. The baseline is the same without a checkpoint."""
    with _broker() as address, contextlib.closing(Peer(address)) as asker, Pinger(address) as pinger:
        quiet = pinger.worst_during(lambda: time.sleep(QUIET_S))
        rounds = list[tuple[float, float]]()
        for _ in range(ROUNDS):
            asker.ask(*(Put("bench", number, 0, None, None, number, b"x" * 100) for number in range(PARTITIONS)))
            started = time.perf_counter()
            worst = pinger.worst_during(lambda: parse_checkpoint_taken(asker.ask(TakeCheckpoint(1))[0].message))
            rounds.append((worst, time.perf_counter() - started))
    detail: dict[str, float] = {"branches": BRANCHES, "partitions": PARTITIONS, "producers": PRODUCERS}
    detail["checkpoint_s"] = round(max(took for _, took in rounds), 2)
    return Result(case, max(worst for worst, _ in rounds) * 1000, "ms", quiet * 1000, detail)


def remember_producers(store: MessageStore, count: int) -> None:
    """Put numbered batches of *count* producers."""
    frame = encode_frame(1, 0, b"x" * 100)
    for number in range(count * BATCHES):
        name = PartitionName("bench", number % PARTITIONS)
        sequence = BatchSequence(f"producer-{number % count}", number // count + 1)
        result = store.transactions.put_batch(name, [frame], len(frame), 1, number, sequence)
        store.high_watermark.run_after(result.lsn, store.publish, result.updates)
        if number % 1000 == 0:
            store.advance()
    store.journal.wait_flushed(store.journal.end)
    store.advance()


@contextlib.contextmanager
def _broker() -> Iterator[tuple[str, int]]:
    with directory_for(0) as data:
        with store_in(data) as store:
            prepare_branches(store, BRANCHES)
            remember_producers(store, PRODUCERS)
            store.last_checkpoint()
        config = data.with_name("broker.toml")
        config.write_text(f"[broker]\ncheckpoint_seconds = 3600.0\n[topics.bench]\npartitions = {PARTITIONS}\n")
        with serving(data, "--config", str(config)) as broker:
            yield broker.address
