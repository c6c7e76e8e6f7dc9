"""topic: applies operators' decisions about topics while the broker runs. Extension; see PROTOCOL.md."""

import logging
from collections.abc import Callable

from journal.errors import RecordTooLarge
from journal.records.record import PartitionName
from journal.records.topic_changes import TopicState, format_partitions
from journal.state.live_branch import AppendResult
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.writes import WriteReplies
from meta_broker.store.topic_decisions import KnownTopic, TopicCommandRejected, plan_change
from meta_broker.store.topics import stored_partitions
from meta_client.protocol.compression import NO_COMPRESSION
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import TopicCommand, TopicVerb
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)


class TopicHandler:
    """Answers topic commands. A decision takes effect at once; it is answered and announced once it is acknowledged."""

    def __init__(self, context: Context, replies: WriteReplies, wake: Callable[[str], None]) -> None:
        self._context = context
        self._replies = replies
        self._wake = wake  # wakes the fetches that wait for a topic

    def handle(self, command: TopicCommand, peer: Peer) -> None:
        context = self._context
        topic = command.topic
        try:
            settings = dict(command.settings)
            if len(settings) < len(command.settings):
                raise TopicCommandRejected(Status.BAD_REQUEST, "a setting is given twice: say each once")
            change = plan_change(command.verb, self._view(topic), settings)
            lsn = context.store.transactions.change_topic(change) if change is not None else context.store.journal.end
        except (TopicCommandRejected, RecordTooLarge, ValueError) as error:
            status = error.status if isinstance(error, TopicCommandRejected) else Status.BAD_REQUEST
            text = str(error) if isinstance(error, TopicCommandRejected) else f"topic {topic} stays as it is: {error}"
            self._replies.send_after_all(command, peer, status, text.encode())
            return
        starts: dict[PartitionName, int] = {}
        if change is not None and change.state is TopicState.DELETED:
            ranges = context.store.transactions.state.offset_ranges.items()
            starts = {name: found.start for name, found in ranges if name.topic == topic}
        if change is not None:
            context.topics.changed()
            log.info("topic decided verb=%s topic=%s settings=%s", command.verb, topic, settings)
        answer = encode_result(Status.SUCCESS, self._text(topic, command.verb).encode(), command.opaque)
        if change is not None:
            context.store.high_watermark.run_after(lsn, self._apply, topic, starts)
        self._replies.send(command, peer, AppendResult(lsn, ()), answer)

    def _apply(self, topic: str, starts: dict[PartitionName, int]) -> None:
        """Let an acknowledged decision take effect outside."""
        context = self._context
        for name, start in starts.items():
            context.store.indexes.trim(name, start)
        self._wake(topic)
        context.announcer.topic_changed(topic)

    def _view(self, topic: str) -> KnownTopic:
        topics, state = self._context.topics, self._context.store.transactions.state
        return KnownTopic(
            topic=topic,
            section=topics.file.get(topic),
            settings=topics.find(topic),
            change=topics.decided.get(topic),
            stored=stored_partitions(state, (topic,)).get(topic, 0),
            decisions=len(topics.decided),
        )

    def _text(self, topic: str, verb: TopicVerb) -> str:
        """Return the topic's settings: `partitions=8 publish=true ... compression=zstd index=none closed=2-3`."""
        view = self._view(topic)
        if verb is TopicVerb.DELETE or view.settings is None:
            return "partitions=0 publish=false subscribe=false stat=false compression=none index=none closed="
        settings = view.settings
        flags = {"publish": settings.accept_publish, "subscribe": settings.accept_subscribe, "stat": settings.stat}
        words = [f"{key}={'true' if flag else 'false'}" for key, flag in flags.items()]
        words.append(f"compression={','.join(settings.compression) or NO_COMPRESSION}")
        words.append(f"index={settings.index or 'none'}")
        return " ".join([f"partitions={settings.partitions}", *words, f"closed={format_partitions(view.closed)}"])
