"""Turns an operator's topic command into a decision to journal, or into a rejection. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

import msgspec

from journal.records.topic_changes import TopicChange, TopicState
from meta_broker.config.broker_config import PARTITIONS_MAX, TopicConfig, why_not_a_topic
from meta_broker.store.topics import section_crc
from meta_client.protocol.compression import LABELS, NO_COMPRESSION
from meta_client.protocol.requests import TopicVerb
from meta_client.protocol.status import Status

T = TypeVar("T")

DECISIONS_MAX: Final = 10_000  # every checkpoint contains all of them
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_FLAGS: Final = {"true": True, "false": False}
_INDEXES: Final[Mapping[str, Literal["attribute"] | None]] = {"none": None, "attribute": "attribute"}
_SETTINGS: Final = frozenset({"partitions", "publish", "subscribe", "stat", "compression", "index"})
_KEYS: Final[Mapping[TopicVerb, frozenset[str]]] = {
    **dict.fromkeys((TopicVerb.CREATE, TopicVerb.ALTER), _SETTINGS),
    TopicVerb.CLOSE: frozenset({"partitions"}),
    TopicVerb.OPEN: frozenset({"partitions"}),
    TopicVerb.DELETE: frozenset(),
    TopicVerb.SHOW: frozenset(),
}


class TopicCommandRejected(Exception):
    """The command is invalid; nothing was changed. The text names the remedy."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """State of one topic. *section*: its own in the file; *settings*: those in effect, if any."""

    topic: str
    section: TopicConfig | None
    settings: TopicConfig | None
    change: TopicChange | None
    stored: int  # one more than the highest partition that holds messages
    decisions: int  # run-time decisions that this broker remembers, about any topic

    @property
    def is_created(self) -> bool:
        """True if it exists by its own name, and is not merely allowed by a pattern."""
        is_named = self.section is not None or (self.change is not None and self.change.state is TopicState.SET)
        return self.settings is not None and (is_named or self.stored > 0)

    @property
    def closed(self) -> tuple[int, ...]:
        return self.change.closed if self.change is not None else ()

    @property
    def partitions(self) -> int:
        return max(self.stored, self.settings.partitions if self.settings is not None else 0)


def plan_change(verb: TopicVerb, view: KnownTopic, settings: Mapping[str, str]) -> TopicChange | None:
    """Return the change that *verb* makes; None: nothing changes. Raises TopicCommandRejected."""
    if "*" in view.topic:
        raise _bad(f"{view.topic} is a pattern: change its section of the configuration file and reload")
    if unknown := sorted(settings.keys() - _KEYS[verb]):
        known = ", ".join(sorted(_KEYS[verb])) or "none"
        raise _bad(f"{verb} knows no setting {unknown[0]!r}: use {known}")
    change: TopicChange | None
    match verb:
        case TopicVerb.CREATE:
            change = _create(view, settings)
        case TopicVerb.ALTER:
            change = _alter(view, settings)
        case TopicVerb.CLOSE:
            change = _close(view, settings)
        case TopicVerb.OPEN:
            change = _open(view, settings)
        case TopicVerb.DELETE:
            change = _delete(view)
        case TopicVerb.SHOW:
            if view.settings is None:
                raise _unknown(view)
            change = None
    if change is not None and view.change is None and view.decisions >= DECISIONS_MAX:
        raise _bad(f"{view.decisions} topics were changed at run time: write some into the configuration file")
    return change


def _create(view: KnownTopic, settings: Mapping[str, str]) -> TopicChange | None:
    topic = view.topic
    if reason := why_not_a_topic(topic):
        raise _bad(f"{topic!r} cannot be created: {reason}")
    wanted = _settings(TopicConfig(), settings)
    if view.is_created:
        if view.settings == wanted:
            return None  # a retried command succeeds like the first one
        raise _bad(f"topic {topic} exists with {view.partitions} partitions: use alter, or another name")
    return _set(view, wanted)


def _alter(view: KnownTopic, settings: Mapping[str, str]) -> TopicChange | None:
    if (before := view.settings) is None:
        raise _unknown(view)
    if not settings:
        raise _bad("nothing to alter: name partitions=N, publish=B, subscribe=B, stat=B, compression=C or index=I")
    wanted = _settings(before, settings)
    if wanted.partitions < before.partitions:
        raise _bad(
            f"topic {view.topic} has {before.partitions} partitions and only grows: close those that must not be used"
        )
    return None if wanted == before else _set(view, wanted)


def _close(view: KnownTopic, settings: Mapping[str, str]) -> TopicChange | None:
    if not view.partitions:
        raise _unknown(view)
    if "partitions" not in settings:
        raise _bad("nothing to close: name partitions=0-3,7 or partitions=all")
    closed = {*view.closed, *_numbers(view, settings["partitions"])}
    return _with_closed(view, tuple(sorted(closed)))


def _open(view: KnownTopic, settings: Mapping[str, str]) -> TopicChange | None:
    if not view.partitions:
        raise _unknown(view)
    opened = _numbers(view, settings.get("partitions", "all"))
    return _with_closed(view, tuple(number for number in view.closed if number not in opened))


def _delete(view: KnownTopic) -> TopicChange:
    # A topic only allowed by a pattern does not exist; one that is only stored can be deleted.
    if not view.is_created and not view.stored:
        raise _unknown(view)
    return TopicChange(topic=view.topic, state=TopicState.DELETED, section=section_crc(view.section))


def _settings(before: TopicConfig, settings: Mapping[str, str]) -> TopicConfig:
    return TopicConfig(
        partitions=_count(settings["partitions"]) if "partitions" in settings else before.partitions,
        accept_publish=_choice(settings, "publish", _FLAGS, before.accept_publish),
        accept_subscribe=_choice(settings, "subscribe", _FLAGS, before.accept_subscribe),
        stat=_choice(settings, "stat", _FLAGS, before.stat),
        compression=_codecs(settings["compression"]) if "compression" in settings else before.compression,
        index=_choice(settings, "index", _INDEXES, before.index),
    )


def _set(view: KnownTopic, wanted: TopicConfig) -> TopicChange:
    return TopicChange(
        topic=view.topic,
        state=TopicState.SET,
        section=section_crc(view.section),
        closed=view.closed,
        **msgspec.structs.asdict(wanted),
    )


def _with_closed(view: KnownTopic, closed: tuple[int, ...]) -> TopicChange | None:
    if closed == view.closed:
        return None
    before = view.change or TopicChange(topic=view.topic, state=TopicState.FILE, section=section_crc(view.section))
    return replace(before, closed=closed)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= PARTITIONS_MAX):
        raise _bad(f"partitions={text[:20]}: use a number from 1 to {PARTITIONS_MAX}")
    return int(text)


def _choice(settings: Mapping[str, str], key: str, choices: Mapping[str, T], before: T) -> T:
    if (text := settings.get(key)) is None:
        return before
    if text not in choices:
        raise _bad(f"{key}={text[:20]}: use {' or '.join(choices)}")
    return choices[text]


def _codecs(text: str) -> tuple[str, ...]:
    """Parse `none`, or names of codecs: `lz4,zstd`."""
    if text == NO_COMPRESSION:
        return ()
    labels = tuple(text.split(","))
    if not set(labels) <= set(LABELS):
        raise _bad(f"compression={text[:40]}: use {NO_COMPRESSION}, or {' or '.join((*LABELS, ','.join(LABELS)))}")
    return labels


def _numbers(view: KnownTopic, text: str) -> set[int]:
    """Parse `all`, or numbers and ranges of partitions: `0-3,7`."""
    if text == "all":
        return set(range(view.partitions))
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _bad(f"partitions={text[:40]}: use all, or numbers and ranges as in 0-3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < view.partitions:
            raise _bad(f"partitions={text[:40]}: topic {view.topic} has partitions 0 to {view.partitions - 1}")
        numbers.update(range(first, last + 1))
    return numbers


def _bad(text: str) -> TopicCommandRejected:
    return TopicCommandRejected(Status.BAD_REQUEST, text)


def _unknown(view: KnownTopic) -> TopicCommandRejected:
    return TopicCommandRejected(
        Status.NOT_FOUND, f"no topic {view.topic}: create it, or look at the names with `stats topics`"
    )
