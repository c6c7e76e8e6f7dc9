"""Topics and brokers that take no messages at the moment, and when each is tried again. One thread; any may read."""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from meta_client.errors import SendRefused, TryAgain
from meta_client.protocol.errors import one_line

log = logging.getLogger(__name__)

PASS_OVER_S: Final = 1.0
PASS_OVER_S_MAX: Final = 10.0  # where it takes long to find out, as of a broker that gives no answer

_K = TypeVar("_K", str, int, tuple[str, int])


class PassedOver(NamedTuple):
    """Topics and brokers that get nothing in a pass. *places*: topics at brokers that are up and do not take them."""

    topics: Collection[str] = ()
    brokers: Collection[int] = ()
    places: Collection[tuple[str, int]] = ()


class Waits(Generic[_K]):
    """Things of one kind that are passed over for a while, logged by *template*. What is due is still listed while it
    is tried."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._until: dict[_K, float] = {}
        self._told: defaultdict[_K, set[Hashable]] = defaultdict(set)  # kinds of reasons
        self._rests_until = 0.0

    def add(self, key: _K, error: Exception, began: float) -> None:
        """Pass *key* over, the longer the longer it has taken since *began* to find out why; and try no other one
        again for as long as that took, or several would leave no time for what goes. Logs one that is new, and each
        kind of reason once."""
        now = time.monotonic()
        if (kind := _kind_of(error)) not in self._told[key]:
            self._told[key].add(kind)
            # mypy checks each kind of key alone, and for each one branch is never taken.
            arguments: tuple[object, ...] = key if isinstance(key, tuple) else (key,)  # type: ignore[redundant-expr]
            log.warning(self._template, *arguments, one_line(error))
        self._until[key] = now + max(PASS_OVER_S, min(3 * (now - began), PASS_OVER_S_MAX))
        self._rests_until = max(self._rests_until, now + min(now - began, PASS_OVER_S_MAX))

    def over(self, now: float) -> set[_K]:
        """Return what is not due yet."""
        return {key for key, until in self._until.items() if max(until, self._rests_until) > now}

    def due_at(self, key: _K) -> float:
        """Return when *key* is tried again. Those due longest come first, or some would never be tried."""
        return self._until.get(key, 0.0)

    def keep(self, keys: Collection[_K]) -> None:
        """Drop all but *keys*."""
        self.drop(set(self._until).difference(keys))

    def drop(self, keys: Collection[_K]) -> None:
        """Drop what takes messages again."""
        self._until = {key: until for key, until in self._until.items() if key not in keys}
        for key in keys:
            self._told.pop(key, None)

    @property
    def listed(self) -> tuple[_K, ...]:
        """Keys that are passed over, or tried again now. Any thread."""
        return tuple(sorted(self._until.copy()))


class RelayWaits:
    """All that a relay passes over."""

    def __init__(self) -> None:
        self.topics = Waits[str]("messages wait topic=%s reason=%s")
        self.brokers = Waits[int]("messages wait broker=%s reason=%s")
        self.places = Waits[tuple[str, int]]("messages wait topic=%s broker=%s reason=%s")

    def over(self, now: float) -> PassedOver:
        """Return what is not due yet."""
        return PassedOver(self.topics.over(now), self.brokers.over(now), self.places.over(now))

    def add(
        self,
        topics: Mapping[str, Exception],
        brokers: Mapping[int, Exception],
        places: Mapping[tuple[str, int], Exception],
        began: float,
    ) -> None:
        """Pass over what a batch found, with the reasons; see Waits.add."""
        for topic, error in topics.items():
            self.topics.add(topic, error, began)
        for broker_id, error in brokers.items():
            self.brokers.add(broker_id, error, began)
        for place, error in places.items():
            self.places.add(place, error, began)

    def add_refusal(self, refusal: SendRefused, began: float) -> None:
        """Pass over the broker that takes a message later, or its topic there; see Waits.add."""
        topic, partition = refusal.destination.topic, refusal.destination.partition
        assert partition is not None  # a batch names each
        if isinstance(refusal, TryAgain):
            self.brokers.add(partition.broker_id, refusal, began)
        else:
            self.places.add((topic, partition.broker_id), refusal, began)

    def keep(self, over: PassedOver) -> None:
        """Drop all but what is *over*."""
        self.topics.keep(over.topics)
        self.brokers.keep(over.brokers)
        self.places.keep(over.places)

    def drop(self, sent: Collection[tuple[str, int]]) -> None:
        """Drop topics and brokers to which messages were *sent*."""
        self.topics.drop({topic for topic, _ in sent})
        self.brokers.drop({broker_id for _, broker_id in sent})
        self.places.drop(sent)


def _kind_of(error: BaseException | None) -> Hashable:
    """Return what errors have in common that differ in the names of transactions alone."""
    found = list[tuple[object, object]]()
    while error is not None:
        found.append((type(error), getattr(error, "code", None)))
        error = error.__cause__
    return tuple(found)
