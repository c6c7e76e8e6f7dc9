"""Cost of a request on a broker that has much of something, beside one that has little of it: it should be the same."""

import contextlib
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, count
from random import Random

from bench.environment import CONFIG, environment
from bench.peer import Peer
from bench.result import Result
from journal.records.producer_state import BatchSequence
from journal.records.xid import XaKey, Xid
from meta_client import Client
from meta_client.producer.producer import Producer
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import HEADER_BYTES, encode_frame
from meta_client.protocol.requests import Get, MultiPut, Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.responses import Result as Answer
from meta_client.protocol.responses import Value

PARTITIONS = 5_000
PRODUCERS = 10_000
MESSAGES = 1_000_000
CONNECTIONS = 2_000
BRANCHES = 50_000
FEW = 100  # messages, on the broker that has few
PAYLOAD = b"x" * 1_024
SMALL = b"x" * 100
FRAME_BYTES = HEADER_BYTES + len(SMALL)
FLIGHT = 100  # calls that are sent before a reply is awaited
FILLED_AT_ONCE = 500
ROUND_S = 1.0
ROUNDS = 7


def partitions(case: str) -> Result:
    """Measure a blocking send in microseconds, over all partitions in turn; both brokers run, alternating each second.

    With flush interval, since an fsync would hide the difference. The median of the rounds.
    """
    with (
        environment("interval:100", "[topics.bench]\npartitions = 1\n") as few,
        environment("interval:100", f"[topics.bench]\npartitions = {PARTITIONS}\n") as many,
        Client(few.zookeeper) as to_few,
        Client(many.zookeeper) as to_many,
    ):
        producers = to_few.producer(), to_many.producer()
        for producer in producers:
            _send_us(producer)  # connects, and touches partitions for the first time
        costs = [(_send_us(producers[0]), _send_us(producers[1])) for _ in range(ROUNDS)]
        start_s = many.start_s
    baseline, value = (statistics.median(column) for column in zip(*costs, strict=True))
    return Result(case, value, "us", baseline, {"partitions": PARTITIONS, "start_s": round(start_s, 2)})


def producers(case: str) -> Result:
    """Cost of a numbered batch on a broker that remembers 10,000 producers, over its cost with one."""
    numbers = count(1)

    def batch(_: int) -> list[Request]:
        return [_batch("one", next(numbers))]

    return _compare(case, "producers", PRODUCERS, lambda number: [_batch(f"producer-{number}", 1)], batch)


def messages(case: str) -> Result:
    """Cost of a read anywhere in a partition of 1,000,000 records, over its cost with 100."""
    random = Random(1)

    def read(stored: int) -> list[Request]:
        return [Get("bench", "bench", 0, FRAME_BYTES * random.randrange(stored or FEW), FRAME_BYTES, 1)]

    return _compare(case, "messages", MESSAGES, lambda _: [_put()], read, few=FEW)


def connections(case: str) -> Result:
    """Cost of a put on a broker with 2,000 idle connections, over its cost with none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONNECTIONS)), hard))
    with contextlib.ExitStack() as opened:

        def connect(address: tuple[str, int]) -> None:
            for _ in range(CONNECTIONS):
                opened.enter_context(contextlib.closing(Peer(address))).ask(Version(1))

        return _compare(case, "connections", CONNECTIONS, lambda _: [], lambda _: [_put()], before=connect)


def branches(case: str) -> Result:
    """Cost of a branch, BEGIN to COMMIT, on a broker with 50,000 others in doubt, over its cost with none."""
    numbers = count(BRANCHES)

    def whole(_: int) -> list[Request]:
        key, opened = _prepared(next(numbers))
        return [*opened, TransactionCommand(key, "bench", TransactionVerb.COMMIT_TWO_PHASE, None, None, 1)]

    return _compare(case, "in_doubt", BRANCHES, lambda number: _prepared(number)[1], whole)


def _compare(
    case: str,
    what: str,
    many: int,
    fill: Callable[[int], list[Request]],
    ask: Callable[[int], list[Request]],
    *,
    few: int = 0,
    before: Callable[[tuple[str, int]], None] = lambda _: None,
) -> Result:
    """Compare what *ask* makes, called with the number of things there, on a broker with *many* and one with *few*.
    The median of rounds in turn, in microseconds a call."""
    with contextlib.ExitStack() as opened:
        costs: list[list[float]] = [[], []]
        sides = []
        for number in (few, many):
            address = opened.enter_context(environment("interval:100", CONFIG)).address
            peer = opened.enter_context(contextlib.closing(Peer(address)))
            for first in range(0, number, FILLED_AT_ONCE):
                _answered(peer, chain.from_iterable(map(fill, range(first, min(first + FILLED_AT_ONCE, number)))))
            if number == many:
                before(address)
            sides.append((peer, number))
        for _ in range(1 + ROUNDS):
            for (peer, number), each in zip(sides, costs, strict=True):
                each.append(_call_us(peer, partial(ask, number)))
    baseline, value = (statistics.median(each[1:]) for each in costs)  # the first one warms up
    return Result(case, value, "us", baseline, {what: many})


def _call_us(peer: Peer, ask: Callable[[], list[Request]]) -> float:
    calls, elapsed = 0, 0.0
    while elapsed < ROUND_S:
        requests = [request for _ in range(FLIGHT) for request in ask()]
        start = time.perf_counter()
        _answered(peer, requests)
        elapsed, calls = elapsed + time.perf_counter() - start, calls + FLIGHT
    return elapsed / calls * 1e6


def _answered(peer: Peer, requests: Iterable[Request]) -> None:
    for answer in peer.exchange(*requests):
        assert isinstance(answer, Value) or (isinstance(answer, Answer) and answer.is_success), answer


def _put() -> Put:
    return Put("bench", 0, 0, None, None, 1, SMALL)


def _batch(producer: str, number: int) -> MultiPut:
    frame = encode_frame(0, 0, SMALL)
    return MultiPut("bench", 0, 1, crc31(frame), BatchSequence(producer, number), None, 1, frame)


def _prepared(number: int) -> tuple[XaKey, list[Request]]:
    key = XaKey(Xid.of(f"order-{number:08}", "metaq"), "bench")
    return key, [
        TransactionCommand(key, "bench", TransactionVerb.BEGIN, None, None, 1),
        Put("bench", 0, 0, None, key, 1, SMALL),
        TransactionCommand(key, "bench", TransactionVerb.PREPARE, None, None, 1),
    ]


def _send_us(producer: Producer) -> float:
    start, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < ROUND_S:
        for _ in range(100):
            producer.send("bench", PAYLOAD)
        sent += 100
    return elapsed / sent * 1e6
