"""Partitions of one consumer, from claim to release: every order of steps of its runners, its user, the group's thread
and the broker.

The consumer's own code runs in actors that take turns (tests/fixtures/turns.py), against a broker, a ZooKeeper and a
store of offsets that are too simple to be wrong (tests/fixtures/consumer_world.py). A listener must get every message
in order from where progress is, never beside another delivery of the partition, and only while the partition may be
delivered. Whatever happened: once nothing fails any more, each owned partition is read to its end, and one long poll of
each waits at the broker.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress

from greenlet import getcurrent
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import ErrorPolicy
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import BatchDelivery
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker
from meta_client.consumer.owned_partitions import OwnedPartitions
from meta_client.consumer.position import Seek
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from meta_client.consumer.subscription import Subscription
from meta_client.consumer.watchdog import FetchState
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Fetch, Get
from meta_client.protocol.responses import Data, Result, Value
from tests.fixtures.consumer_world import SIZE, URLS, Broker, Keeper, Reply
from tests.fixtures.thoroughness import examples
from tests.fixtures.turns import Turns, TurnWorkers
from zk.brokers.cluster import BrokerEntry
from zk.errors import ZooKeeperError
from zk.tree.claims import Claimed
from zk.tree.nodes import Partition, TopicPartition

HEARD = [("heard", Partition(0, 0)), ("heard", Partition(0, 1))]
PULLED = ("pulled", Partition(0, 0))
KEYS = [*HEARD, PULLED]
FETCH_S, WAIT_S = 3.0, 10.0

KINDS = ("well", "refused", "well", "moved", "well", "other", "well", "well", "lost", "well", "well")  # of answers

OUTCOMES = ("return", "return", "return", "return", "raise", "seek")  # of a listener

keys = st.sampled_from(KEYS)


class Consuming(RuleBasedStateMachine):
    """One consumer with two listened partitions and one that is pulled."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = turns = Turns()
        self.stack = ExitStack()
        self.stack.enter_context(turns.clock("meta_client.consumer."))
        logging.disable()
        self.stack.callback(logging.disable, logging.NOTSET)
        self.broker = Broker(turns, dict.fromkeys(KEYS, 0))
        self.keeper = Keeper(turns)
        self.keeper.loaded, self.keeper.may_store = self.on_loaded, self.check_progress
        self.tracker = OffsetTracker()
        self.workers = TurnWorkers(turns)
        self.is_leased = True
        self.is_session_lost = False
        self.pauses = 0
        config = ConsumerConfig(runners=2, fetch_timeout_s=FETCH_S, fetch_wait_s=WAIT_S)
        self.fetcher = Fetcher("group", self.broker, self.tracker, config, lambda: self.is_leased, self.workers)
        self.buffer = PullBuffer(self.fetcher.assignments, self.tracker, 4 * SIZE, self.fetcher.unpark)
        self.tracker.on_commit = self.buffer.report
        subscriptions = {"heard": self.subscription(self.listen), "pulled": self.subscription(None)}
        self.owned = OwnedPartitions(
            *(self.keeper, self.fetcher, self.tracker, self.keeper, subscriptions),  # type: ignore[arg-type]
            *(ConsumerConfig(backoff_s_max=2.0), lambda: self.is_leased and not self.is_session_lost),
        )
        self.stale: list[tuple[TopicPartition, int, int]] = []
        self.fetcher.on_stale = lambda request, seen: self.stale.append((request.key, request.epoch or 0, seen))
        self.outcome = "return"  # of the listener that goes on next
        self.busy: dict[str, object] = {}  # operations in progress: the member's, and the user's by partition
        # What the user must see. Position: where the next delivery begins, of the assignment with this number.
        self.position: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)
        self.assignment: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)
        self.is_assigned: dict[TopicPartition, bool | None] = dict.fromkeys(KEYS, False)  # None: it is changing
        self.before_seek: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)
        self.seeks: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)
        self.moves: dict[TopicPartition, set[tuple[int, int]]] = defaultdict(set)  # named by the broker
        self.done: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)  # consumed; only for pulled ones
        self.listening: set[TopicPartition] = set()
        self.listeners: set[object] = set()  # actors that are in a listener
        self.paused: set[TopicPartition] = set()
        self.wrong: list[Exception] = []
        self.dice = random.Random(0)

    def subscription(self, listener: Callable[[Batch], object] | None) -> Subscription:
        no_filter = MessageFilter(None, None)

        def new_delivery() -> Delivery:
            if listener is None:
                return PullDelivery(self.buffer, self.tracker, no_filter, None)
            return BatchDelivery(listener, ErrorPolicy(), no_filter, None)

        return Subscription(3 * SIZE, new_delivery, None, is_manual=False, reject=None)

    @initialize(
        seed=st.integers(0, 2**32 - 1), is_genuine=st.sampled_from([False, False, True]), count=st.integers(0, 9)
    )
    def start(self, seed: int, *, is_genuine: bool, count: int) -> None:
        self.dice = random.Random(seed)
        self.broker.is_genuine = is_genuine
        self.broker.ends = dict.fromkeys(KEYS, count)
        self.fetcher.set_brokers({0: BrokerEntry(URLS[0])})
        self.fetcher.start()
        self.fetcher.assignments.resume(0)
        self.claim()

    # -- what the consumer's actors see ----------------------------------------------------------------------------

    def listen(self, batch: Batch) -> None:
        key = batch.topic, batch.partition
        try:
            self.check_delivery(key, batch)
        except AssertionError as error:
            self.wrong.append(error)  # what a listener raises is contained
        self.position[key] = batch.offset
        mark = self.assignment[key], self.seeks[key]
        self.listening.add(key)
        self.listeners.add(getcurrent())
        self.turns.switch()
        self.listeners.remove(getcurrent())
        self.listening.remove(key)
        if self.outcome == "raise":
            raise ValueError("injected")
        if self.outcome == "seek":
            with self.turns.undisturbed():
                self.seek_now(key, 0)
        if mark == (self.assignment[key], self.seeks[key]):
            self.position[key] = batch.next_offset

    def check_delivery(self, key: TopicPartition, batch: Batch) -> None:
        assert key not in self.listening, "two deliveries of one partition"
        expected = self.reachable(key, self.position[key])
        assert batch.offset in expected, f"{key} is delivered from {batch.offset} instead of {expected}"
        assert [message.message_id * SIZE for message in batch.messages] == list(
            range(batch.offset, batch.next_offset, SIZE)
        )
        assert self.keeper.stored.get(key, 0) <= batch.offset, "a store that compares would skip this batch"
        assert self.is_leased, "without a lease"
        assert not self.is_session_lost, "without a session"
        assert key not in self.paused, "though paused"
        assert self.is_assigned[key] is not False, "though not assigned"
        assert isinstance(self.keeper.owner[key], Claimed), "though another consumer's"

    def on_loaded(self, key: TopicPartition, offset: int) -> None:
        self.assignment[key] += 1
        self.position[key] = self.done[key] = self.before_seek[key] = offset
        self.is_assigned[key] = True
        self.moves[key].clear()

    def check_progress(self, entry: OffsetEntry) -> None:
        key = entry.topic, entry.partition
        if entry.offset > (limit := self.progress(key)):  # the store's errors are contained
            self.wrong.append(AssertionError(f"unconsumed messages would be lost: {entry} beyond {limit}"))

    def progress(self, key: TopicPartition) -> int:
        """Return the highest offset that may be stored: before a seek is carried out, what was consumed before it."""
        return max(self.before_seek[key], *self.reachable(key, self.done[key] if key == PULLED else self.position[key]))

    def reachable(self, key: TopicPartition, offset: int) -> set[int]:
        """Return where a reader at *offset* may be now, that a broker may have moved."""
        found = {offset}
        while more := {to for at, to in self.moves[key] if at in found} - found:
            found |= more
        return found

    # -- steps -----------------------------------------------------------------------------------------------------

    @invariant()
    def the_world_goes_on(self) -> None:
        """After each rule: actors go on in any order, with messages, answers and time in between."""
        dice = self.dice
        if dice.random() < 0.3:
            self.broker.ends[dice.choice(KEYS)] += dice.randrange(4)
        for _ in range(dice.choice((0, 5, 20, 60))):
            self.outcome = dice.choice(OUTCOMES)
            if dice.random() < 0.2 and self.broker.open:
                self.answer(dice.randrange(1000), dice.choice(KINDS))
            elif ready := [it for it in self.turns.ready() if it not in self.listeners or dice.random() < 0.1]:
                self.turns.step(dice.choice(ready))
            elif dice.random() < 0.5:
                self.turns.advance()
        assert not self.wrong, self.wrong

    @rule(what=st.sampled_from(["release", "reclaim", "lose", "pause", "seek", "redeliver", "return"]))
    def meet_a_delivery(self, what: str) -> None:
        """Go on until a listener is running, and do *what* then."""
        for key in HEARD:
            self.broker.ends[key] += 1
        self.go_on_until(lambda: bool(self.listeners))
        for key in sorted(self.listening):
            match what:
                case "release":
                    self.release(key)
                case "reclaim":
                    self.reclaim(key)
                case "lose":
                    self.lose_session()
                    self.start_over()
                    self.claim()
                case "pause":
                    self.pause(key)
                case "seek":
                    self.seek(key, 0)
                case "redeliver":
                    self.redeliver(key)
                case _:
                    pass

    @rule(number=st.integers(0, 1000))
    def lose_what_was_fetched_ahead(self, number: int) -> None:
        """Go on until messages are fetched ahead, and let the broker lose some of them, or all."""
        self.broker.ends[PULLED] += 1

        def asked() -> list[int]:
            replies = list(self.broker.open.values())
            return [n for n, it in enumerate(replies) if it.key == PULLED and it.request.offset > self.done[PULLED]]

        self.go_on_until(lambda: bool(asked()))
        for index in asked()[:1]:
            reply = list(self.broker.open.values())[index]
            self.move(reply, number % (reply.request.offset // SIZE) * SIZE)
        self.commit()

    def go_on_until(self, done: Callable[[], bool]) -> None:
        for _ in range(200):
            if done():
                break
            if ready := self.turns.ready():
                self.turns.step(self.dice.choice(ready))
            elif self.broker.open:
                self.answer(self.dice.randrange(1000), "well")
            else:
                self.turns.advance()

    @rule()
    def time_passes(self) -> None:
        self.turns.advance()

    @rule(key=keys, count=st.integers(1, 4))
    def produce(self, key: TopicPartition, count: int) -> None:
        self.broker.ends[key] += count

    def answer(self, index: int, kind: str) -> None:
        reply = list(self.broker.open.values())[index % len(self.broker.open)]
        request, key = reply.request, reply.key
        match kind:
            case "well":
                self.broker.answer(reply, self.broker.messages(reply))
            case "refused":
                status = (404, 403, 503, 500)[index % 4]
                self.broker.answer(reply, Result(status, b"refused", request.opaque))
            case "moved":
                to = (index % (self.broker.ends[key] + 1)) * SIZE
                if to != request.offset:
                    self.move(reply, to)
            case "other" if index % 3 == 0 and request.offset:  # beyond the end: it stops
                self.broker.answer(reply, Result(416, b"0", request.opaque))
            case "other" if index % 3 == 1 and isinstance(request, Fetch):
                self.broker.answer(reply, Result(409, b"%d" % (self.keeper.epochs[key] + 3), request.opaque))
            case "other":
                body = encode_frame(request.offset // SIZE, 0, b"%04d" % (request.offset // SIZE))
                body = body[:-1] if index % 2 else body[:-1] + b"!"  # cut off, or broken
                is_get = isinstance(request, Get)
                response = Value(body, request.opaque) if is_get else Data(body, SIZE, "m", request.opaque)
                self.broker.answer(reply, response)
            case "lost":
                self.broker.lose()

    def move(self, reply: Reply, to: int) -> None:
        request = reply.request
        is_filtered = b" filtered" if to > request.offset else b""
        self.moves[reply.key].add((request.offset, to))
        self.broker.answer(reply, Result(301, b"%d%b" % (to, is_filtered), request.opaque))

    @rule(is_elsewhere=st.booleans())
    def broker_fails(self, *, is_elsewhere: bool) -> None:
        self.broker.is_up = False
        self.broker.lose()
        if is_elsewhere:  # it comes back at another address
            self.broker.is_up = True
            self.broker.url = URLS[self.broker.url == URLS[0]]
            self.member(lambda: self.fetcher.set_brokers({0: BrokerEntry(self.broker.url)}))

    @rule()
    def broker_is_back(self) -> None:
        self.broker.is_up = True

    # -- the user --------------------------------------------------------------------------------------------------

    @rule(key=keys, number=st.integers(0, 6))
    def seek(self, key: TopicPartition, number: int) -> None:
        offset = min(number, self.broker.ends[key]) * SIZE
        self.user(key, lambda: self.seek_now(key, offset))

    def seek_now(self, key: TopicPartition, offset: int) -> None:
        with self.turns.undisturbed():
            is_assigned = key in {status.key for status in self.fetcher.statuses()}
        if is_assigned:
            self.seeks[key] += 1
            self.before_seek[key] = self.progress(key)
            self.position[key] = self.done[key] = offset
            self.moves[key].clear()
        self.fetcher.seek(key, Seek(offset, is_progress=True))

    @rule(key=keys)
    def pause(self, key: TopicPartition) -> None:
        if self.user(key, lambda: self.fetcher.assignments.pause_partitions([key])):
            self.paused.add(key)

    @rule(key=keys)
    def resume(self, key: TopicPartition) -> None:
        if f"user {key}" not in self.busy:
            self.paused.discard(key)
            self.user(key, lambda: self.fetcher.resume_partitions([key]))

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        self.user(PULLED, lambda: self.take_now(count))

    def take_now(self, count: int) -> None:
        self.done[PULLED] = self.position[PULLED]
        with self.turns.undisturbed():
            taken = self.buffer.poll(count, 0.0)
        for message in taken:
            expected = self.reachable(PULLED, self.position[PULLED])
            assert message.offset in expected, f"{message.offset} is handed out instead of {expected}"
            self.position[PULLED] = message.next_offset

    @rule(key=st.sampled_from(HEARD))
    def redeliver(self, key: TopicPartition) -> None:
        def work() -> None:
            if self.fetcher.assignments.begin_redelivery(key):
                assert key not in self.listening
                self.listening.add(key)
                self.listeners.add(getcurrent())
                self.turns.switch()
                self.listeners.remove(getcurrent())
                self.listening.remove(key)
                self.fetcher.assignments.end_redelivery(key)

        self.run("redelivery", work)

    # -- the group's thread, and ZooKeeper's -------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        self.member(lambda: self.owned.claim([key for key in KEYS if not self.is_owned(key)]))

    @rule(key=keys)
    def release(self, key: TopicPartition) -> None:
        def work() -> None:
            if self.is_owned(key):
                self.is_assigned[key] = None
                self.owned.release([key])

        self.member(work)

    @rule()
    def finish_releases(self) -> None:
        self.member(lambda: self.owned.finish_releases(()))

    @rule()
    def commit(self) -> None:
        self.member(self.owned.commit)

    @rule(key=keys)
    def reclaim(self, key: TopicPartition) -> None:
        self.member(lambda: self.owned.reclaim([key] if self.is_owned(key) else []))

    @precondition(lambda self: self.stale)
    @rule()
    def give_stale_up(self) -> None:
        if self.member(lambda: self.owned.release_stale(*self.stale[0])):
            self.stale.pop(0)

    @rule()
    def sweep(self) -> None:
        self.turns.now += WAIT_S + FETCH_S

    @rule(is_leased=st.booleans())
    def lease(self, *, is_leased: bool) -> None:
        self.is_leased = is_leased

    @rule()
    def lose_session(self) -> None:
        self.is_session_lost = True
        self.pauses = self.fetcher.assignments.pause()
        self.keeper.owner = {key: owner for key, owner in self.keeper.owner.items() if isinstance(owner, str)}

    @precondition(lambda self: self.is_session_lost)
    @rule()
    def start_over(self) -> None:
        def work() -> None:
            pauses = self.pauses
            self.owned.drop_all()
            self.is_session_lost = self.pauses != pauses
            self.fetcher.assignments.resume(pauses)

        self.member(work)

    @rule(key=keys)
    def another_owns(self, key: TopicPartition) -> None:
        self.keeper.owner.setdefault(key, "another")

    @rule(key=keys)
    def another_leaves(self, key: TopicPartition) -> None:
        if isinstance(self.keeper.owner.get(key), str):
            del self.keeper.owner[key]

    @rule(fails=st.sampled_from(["before", "after"]), load_fails=st.booleans())
    def zookeeper_fails(self, fails: str, *, load_fails: bool) -> None:
        self.keeper.fails, self.keeper.load_fails = fails, load_fails

    def is_owned(self, key: TopicPartition) -> bool:
        return key in list(self.owned.keys())

    def member(self, work: Callable[[], object]) -> bool:
        def guarded() -> None:
            with suppress(ZooKeeperError):
                work()
            self.owned.take_lost()
            owned = set(self.owned.keys())
            for key in KEYS:
                self.is_assigned[key] = key in owned

        return self.run("member", guarded)

    def user(self, key: TopicPartition, work: Callable[[], object]) -> bool:
        return self.run(f"user {key}", work)

    def run(self, name: str, work: Callable[[], object]) -> bool:
        """Begin an operation; False if one with this name is in progress."""
        if name in self.busy:
            return False
        self.busy[name] = work

        def guarded() -> None:
            work()
            del self.busy[name]

        self.turns.spawn(guarded)
        return True

    # -- what must hold ----------------------------------------------------------------------------------------------

    @rule()
    def settle(self) -> None:
        """Nothing fails any more, and everybody does what is to do."""
        self.heal()
        for _ in range(12):
            self.work()
            self.claim()
            self.work()
            self.commit()
            self.stale.clear()
        for _ in range(sum(self.broker.ends.values())):
            self.take(9)
            self.work()
            self.commit()  # a reset, without which nothing is fetched
            self.work()
        assert sorted(self.owned.keys()) == KEYS
        for key, end in self.broker.ends.items():
            assert end * SIZE in self.reachable(key, self.position[key]), "not read to its end"
        assert {status.state for status in self.fetcher.statuses()} == {FetchState.FETCHING}
        assert self.fetcher.assignments.is_caught_up()
        polled = sorted(reply.key for reply in self.broker.open.values())
        assert polled == ([] if self.broker.is_genuine else KEYS), "each waits at the broker, once"

    def heal(self) -> None:
        self.broker.is_up = self.is_leased = True
        self.keeper.fails, self.keeper.load_fails = None, False
        self.keeper.owner = {key: owner for key, owner in self.keeper.owner.items() if not isinstance(owner, str)}
        self.outcome = "return"
        self.work()
        if self.is_session_lost:
            self.start_over()
        for key in KEYS:
            self.resume(key)
            self.work()
        self.member(lambda: self.fetcher.set_brokers({0: BrokerEntry(self.broker.url)}))

    def work(self) -> None:
        """All actors go on, requests are answered and time passes, until only polls at the end are left."""
        until = self.turns.now + 3.0
        for _ in range(400):
            for _ in range(200):
                if not (ready := self.turns.ready()):
                    break
                for actor in ready:
                    self.turns.step(actor)
            else:
                raise AssertionError("it goes in circles")
            asked = [
                reply
                for reply in self.broker.open.values()
                if isinstance(reply.request, Get)
                or not reply.request.wait_ms
                or reply.request.offset < self.broker.ends[reply.key] * SIZE
                or self.turns.now >= reply.sent_at + WAIT_S
            ]
            for reply in asked:
                self.broker.answer(reply, self.broker.messages(reply))
            if not asked:
                if self.turns.now >= until:
                    return
                self.turns.advance()

    def teardown(self) -> None:
        try:
            if self.workers.runners and not self.wrong:
                self.close()
        finally:
            self.turns.kill()
            self.stack.close()

    def close(self) -> None:
        self.heal()
        self.work()
        self.buffer.close()

        def leave() -> None:
            self.fetcher.close()
            self.owned.release(list(self.owned.keys()))

        self.member(leave)
        self.work()
        assert not self.turns.actors, "somebody waits for nothing"
        assert self.keeper.owner == {}
        assert self.broker.open == {}


TestConsuming = Consuming.TestCase
TestConsuming.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
