"""stats: reports the broker in lines of `key value`, as text (spec 12.1)."""

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from journal.errors import JournalError
from journal.records.header import RecordHeader
from journal.records.record import PartitionName
from journal.state.checkpoint import checkpoint_numbers
from journal.wal.scan import record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from meta_broker.config.broker_config import TopicConfig
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.realtime import Statistic
from meta_broker.replication.master.report import report_lines
from meta_broker.replication.replica.copy_report import copy_lines
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import Stats
from meta_client.protocol.status import Status

_HELP = (
    "*EMPTY* the broker: process, connections, commands, transactions, messages",
    "help this list",
    "topics partitions, messages and bytes of every topic",
    "replication of a master: each slave, in sync or not, and its lag; of a slave: its copy",
    "journal segments, checkpoints, disk and retention",
    "offsets first and end offset of every partition",
    "realtime statistics of topics with stat = true since the last reset (null: none)",
    "reset reset the realtime statistics",
    "quotas connections and branches of each principal and address that has a quota, and which are throttled now",
    "config the configuration file as the broker read it",
    "<topic> one topic",
)


class StatsHandler:
    """Answers stats."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handle(self, stats: Stats, peer: Peer) -> None:
        if stats.item == "config":
            peer.send(self._config(stats.opaque))
            return
        if stats.item == "journal":
            self._report_journal(stats.opaque, peer)
            return
        peer.send(_text(self._lines(stats.item), stats.opaque))

    def _report_journal(self, opaque: int, peer: Peer) -> None:
        """Answer from a thread: the disk may take its time. Bounded by each connection's requests in flight."""

        def answer(reading: asyncio.Future[list[str]]) -> None:
            if reading.cancelled() or reading.exception() is not None:
                peer.send(encode_result(Status.INTERNAL_ERROR, b"the journal could not be looked at", opaque))
            else:
                peer.send(_text(reading.result(), opaque))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, lambda: list(journal_lines(self._context))).add_done_callback(answer)

    def _config(self, opaque: int) -> bytes:
        """Return the configuration file as the broker read it, without STATS and END; or that there is none (spec
        1.5.6).
        """
        config = self._context.config
        if config.path is None:
            text = b"Config file not found:this broker was started without --config"
            return encode_result(Status.INTERNAL_ERROR, text, opaque)
        return encode_result(Status.SUCCESS, config.source, opaque)

    def _lines(self, item: str) -> Iterable[str]:
        match item:
            case "":
                return self._broker()
            case "help":
                return _HELP
            case "topics":
                return self._topics()
            case "offsets":
                return self._offsets()
            case "replication":
                if (slave := self._context.slave) is not None:
                    return copy_lines(slave.report())
                master = self._context.master
                return ["no master"] if master is None else report_lines(master, asyncio.get_running_loop().time())
            case "realtime":
                return [f"realtime_{kind} {self._context.realtime.total(kind)}" for kind in Statistic]
            case "quotas":
                return self._quotas()
            case "reset":
                self._context.realtime.reset()
                return ["reset ok"]
            case topic:
                return self._topic(topic)

    def _broker(self) -> list[str]:
        context = self._context
        counters, store = context.counters, context.store
        values: dict[str, object] = {
            "pid": os.getpid(),
            "broker_id": context.config.broker_id,
            "port": context.url.rpartition(":")[2],
            "uptime": int(time.monotonic() - context.started),
            "version": context.version,
            "slave": _word(context.slave is not None),
            "curr_connections": counters.connections,
            "threads": threading.active_count(),
            "cmd_put": counters.puts,
            "cmd_get": counters.gets,
            "cmd_offset": counters.offsets,
            "tx_begin": counters.begins,
            "tx_xa_begin": counters.xa_begins,
            "tx_commit": counters.commits,
            "tx_rollback": counters.rollbacks,
            "get_miss": counters.gets_missed,
            "put_failed": counters.puts_failed,
            "total_messages": sum(index.messages for index in store.indexes.by_name.values()),
            "topics": len({name.topic for name, _ in self._indexes()}),
            "config_checksum": context.config.checksum,
            "get_unreadable": counters.gets_unreadable,
            "unreadable_ranges": len(context.faults),
            "indexes_rebuilding": len(store.indexes.damaged),
            "loop_delay_ms_max": f"{context.loop_delay.max_ms:.1f}",  # since the start, as uptime
            "loop_delay_ms_max_60s": f"{context.loop_delay.window_max_ms():.1f}",
        }
        if (slave := context.slave) is not None:
            behind = slave.lag()
            values["slave_id"], values["master"] = slave.slave_id, slave.master or "unknown"
            values["lag_bytes"], values["ms_since_heartbeat"] = behind.bytes, behind.silent_ms
        return [f"{key} {value}" for key, value in values.items()]

    def _indexes(self) -> list[tuple[PartitionName, PartitionIndex]]:
        """Return every partition that was put to, by name, without deleted topics."""
        topics, by_name = self._context.topics, self._context.store.indexes.by_name
        return sorted(
            (name, index) for name, index in by_name.items() if index.start < index.end or topics.offers(*name)
        )

    def _by_topic(self) -> dict[str, list[PartitionIndex]]:
        topics: dict[str, list[PartitionIndex]] = {}
        for name, index in self._indexes():
            topics.setdefault(name.topic, []).append(index)
        return topics

    def _topics(self) -> Iterable[str]:
        with_data = self._by_topic()
        for topic, indexes in with_data.items():
            section = self._section(topic)
            messages, size = sum(i.messages for i in indexes), sum(i.end - i.start for i in indexes)
            yield (
                f"{topic} partitions {max(section.partitions, len(indexes))} message_count {messages} "
                f"message_bytes {size} accept_publish {_word(section.accept_publish)} "
                f"accept_subscribe {_word(section.accept_subscribe)}"
            )
        for topic in sorted(self._context.topics.named - with_data.keys()):
            yield f"{topic} *Empty*"

    def _offsets(self) -> Iterable[str]:
        for name, index in self._indexes():
            yield f"{name.topic} part {name.partition} min_offset {index.start} max_offset {index.end}"

    def _quotas(self) -> Iterable[str]:
        now = asyncio.get_running_loop().time()
        for account in self._context.accounts:
            yield (
                f"{' '.join(account.key)} connections {account.connections} branches {account.branches} "
                f"throttled {_word(account.throttled_until > now)}"
            )

    def _topic(self, topic: str) -> list[str]:
        indexes = self._by_topic().get(topic, [])
        section = self._context.topics.find(topic)
        code = 0 if indexes else 1 if section is None else 2
        return [
            topic,
            f"resultCode {code}",
            f"partitions {max(section.partitions if section else 0, len(indexes))}",
            f"message_count {sum(index.messages for index in indexes)}",
            f"bytes {sum(index.end - index.start for index in indexes)}",
            *(f"topic_realtime_{kind} {self._context.realtime.of_topic(kind, topic)}" for kind in Statistic),
        ]

    def _section(self, topic: str) -> TopicConfig:
        return self._context.topics.find(topic) or TopicConfig(accept_publish=False)


def _text(lines: Iterable[str], opaque: int) -> bytes:
    return encode_result(Status.SUCCESS, "\r\n".join(["STATS", *lines, "END", ""]).encode(), opaque)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


SEGMENTS_SHOWN = 64  # the oldest, and the newest


def journal_lines(context: Context) -> Iterator[str]:
    """Yield the report's lines. Any thread."""
    store, journal = context.store, context.store.journal
    end = journal.end
    if len(journal.segments):
        yield (
            f"journal start {journal.start_lsn} end {end} flushed {journal.flushed} "
            f"high_watermark {store.high_watermark.acknowledged} segments {len(journal.segments)}"
        )
    replay = max(end - store.source.durable_checkpoint_lsn, 0)
    yield f"checkpoints durable_lsn {store.source.durable_checkpoint_lsn} replay_bytes {replay}"
    yield from _checkpoints(context)
    yield from _disk(context)
    section = context.config.retention
    hours = "-" if section.hours is None else f"{section.hours:g}"
    size = "-" if section.bytes is None else str(section.bytes)
    yield f"retention hours {hours} bytes {size} policy {section.policy}"
    if (tier := store.tier) is not None:
        cache = tier.cache
        yield (
            f"archive reads {tier.reads} hits {cache.hits} downloads {cache.downloads} failures {cache.failures} "
            f"downloaded_bytes {cache.bytes_downloaded} "
            f"cache_bytes {cache.bytes_held} cache_bytes_max {cache.bytes_max}"
        )
    yield from _segments(journal.segments)


def _checkpoints(context: Context) -> Iterator[str]:
    try:
        numbers = checkpoint_numbers(context.store.journal.storage)
    except JournalError:
        return
    for number in numbers:
        try:
            found = (context.config.data / f"checkpoint.{number}").stat()
        except OSError:
            continue  # deleted meanwhile, or the disk does not answer
        yield f"checkpoint {number} bytes {found.st_size} age_ms {max(int((time.time() - found.st_mtime) * 1000), 0)}"


def _disk(context: Context) -> Iterator[str]:
    try:
        found = os.statvfs(context.config.data)
    except OSError:
        return
    sizes = f"disk free_bytes {found.f_frsize * found.f_bavail} size_bytes {found.f_frsize * found.f_blocks}"
    is_refusing = context.slave is None and context.store.space.is_full
    yield f"{sizes} refuses_writes {'true' if is_refusing else 'false'}"


def _segments(segments: Segments) -> Iterator[str]:
    files = list(segments)
    hidden = max(len(files) - SEGMENTS_SHOWN, 0)
    for base, file in files[:1] + list(islice(files, 1 + hidden, None)):
        try:
            header = record_at(segments, base + SEGMENT_HEADER_BYTES)
        except (JournalError, KeyError):
            header = None  # it can't be read, or retention has just deleted it
        first = f" first_ms {header.time_ms}" if isinstance(header, RecordHeader) else ""
        yield f"segment {base} bytes {file.size}{first}"
