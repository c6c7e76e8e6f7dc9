"""Run-time decisions about topics, as records and checkpoints hold them. Pure.

The last decision about a topic replaces all before it, so replaying it twice changes nothing. The broker reconciles
decisions with the configuration file; *section* lets it detect that the file has changed since.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

HEAD: Final = struct.Struct("<BBIII")  # state, switches, partitions, section, how many closed; closed and topic follow
_PUBLISH, _SUBSCRIBE, _STAT = 1, 2, 4
_CODECS: Final = {"zstd": 8, "lz4": 16}  # bit in the switches
_INDEX: Final = 32  # bit in the switches
INDEX_ATTRIBUTE: Final = "attribute"  # the only kind of index
_U32_MAX = 2**32 - 1
_SWITCHES_MAX = _PUBLISH | _SUBSCRIBE | _STAT | sum(_CODECS.values()) | _INDEX


class TopicState(IntEnum):
    """Authority over a topic's settings."""

    FILE = 1  # the configuration file; only closed partitions are remembered
    SET = 2  # the settings of the record, whatever the file says
    DELETED = 3  # gone until it is created again


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """All run-time decisions about a topic. Settings count in state SET only, and are empty otherwise.

    *section*: CRC-32 of the topic's section in the configuration file at that time; 0: it had none. *compression*:
    allowed codecs for messages, sorted. *index*: "attribute" or None, for no index. *closed*: partitions closed to puts
    and gets until they are opened, rising.
    """

    topic: str
    state: TopicState
    section: int = 0
    partitions: int = 0
    accept_publish: bool = False
    accept_subscribe: bool = False
    stat: bool = False
    compression: tuple[str, ...] = ()
    index: str | None = None
    closed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 <= number <= _U32_MAX for number in (self.section, self.partitions, *self.closed)):
            raise ValueError("a number that is not from 0 to 2^32 - 1")
        is_set = self.state is TopicState.SET
        if is_set != (self.partitions > 0):
            raise ValueError(f"{self.partitions} partitions in state {self.state.name}")
        if not is_set and (self.accept_publish or self.accept_subscribe or self.stat or self.compression or self.index):
            raise ValueError(f"switches in state {self.state.name}")
        if self.compression != tuple(sorted(_CODECS.keys() & self.compression)):
            raise ValueError(f"compression {self.compression!r}: not some of {sorted(_CODECS)} in that order")
        if self.index not in (None, INDEX_ATTRIBUTE):
            raise ValueError(f"index {self.index!r}: not {INDEX_ATTRIBUTE!r}")
        if self.state is TopicState.DELETED and self.closed:
            raise ValueError("a deleted topic with closed partitions")
        if any(number >= after for number, after in zip(self.closed, self.closed[1:], strict=False)):
            raise ValueError("closed partitions that do not rise")

    @property
    def says_nothing(self) -> bool:
        """True if it can be dropped: the file decides, and no partition is closed."""
        return self.state is TopicState.FILE and not self.closed


def encode_change(change: TopicChange, topic: bytes) -> bytes:
    """Return the meta part of a TOPIC record. Raises struct.error for numbers beyond 32 bits."""
    switches = _PUBLISH * change.accept_publish | _SUBSCRIBE * change.accept_subscribe | _STAT * change.stat
    switches |= sum(_CODECS[codec] for codec in change.compression) | _INDEX * (change.index is not None)
    closed = change.closed
    head = HEAD.pack(change.state, switches, change.partitions, change.section, len(closed))
    return head + struct.pack(f"<{len(closed)}I", *closed) + topic


def decode_change(meta: bytes, topic_of: Callable[[bytes], str]) -> TopicChange:
    """Decode the meta part of a TOPIC record; *topic_of* decodes the topic. Raises ValueError, struct.error."""
    state, switches, partitions, section, count = HEAD.unpack_from(meta)
    if switches > _SWITCHES_MAX:
        raise ValueError(f"unknown switches {switches:#x}")
    at = HEAD.size + 4 * count
    if at > len(meta):
        raise ValueError(f"{count} closed partitions in a record of {len(meta)} bytes")
    return TopicChange(
        topic=topic_of(meta[at:]),
        state=TopicState(state),
        section=section,
        partitions=partitions,
        accept_publish=bool(switches & _PUBLISH),
        accept_subscribe=bool(switches & _SUBSCRIBE),
        stat=bool(switches & _STAT),
        compression=tuple(sorted(codec for codec, switch in _CODECS.items() if switches & switch)),
        index=INDEX_ATTRIBUTE if switches & _INDEX else None,
        closed=struct.unpack_from(f"<{count}I", meta, HEAD.size),
    )


def describe_change(change: TopicChange) -> str:
    """Format as one line without the topic: `set partitions=8 publish=true subscribe=true stat=false closed=2`."""
    words = [change.state.name.lower()]
    if change.state is TopicState.SET:
        words += [
            f"partitions={change.partitions}",
            f"publish={_word(change.accept_publish)}",
            f"subscribe={_word(change.accept_subscribe)}",
            f"stat={_word(change.stat)}",
        ]
        if change.compression:
            words.append(f"compression={','.join(change.compression)}")
        if change.index is not None:
            words.append(f"index={change.index}")
    if change.closed:
        words.append(f"closed={format_partitions(change.closed)}")
    return " ".join(words)


def format_partitions(numbers: tuple[int, ...]) -> str:
    """Format rising numbers, neighbours as a range: `0-3,7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
