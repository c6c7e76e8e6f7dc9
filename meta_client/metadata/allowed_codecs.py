"""Codecs that a topic's brokers allow: asked of each broker, cached, and refreshed.

A producer uses a codec only if every broker of the topic allows it: none until all have answered, and none at a broker
without the extension.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from meta_client.metadata.topology import TopicView
from meta_client.net.calls import checked_broker, checked_result
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transports
from meta_client.protocol.compression import Codec, codec_of
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import TopicCommand, TopicVerb
from zk.tree.broker_url import BrokerUrl

EXTENSION: Final = "compression"
REFRESH_S: Final = 5.0  # an operator's change takes effect within this time
ANSWER_TIMEOUT_S: Final = 3.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Answer:
    """Codecs that one broker allows for one topic."""

    codecs: frozenset[Codec] = frozenset()
    asked_at: float = 0.0  # monotonic


class AllowedCodecs:
    """Cache of allowed codecs of one client. Any thread."""

    def __init__(self, connections: Transports) -> None:
        self._connections = connections
        self._lock = threading.Lock()  # guards the next two; answers are replaced whole
        self._answers: dict[tuple[str, int, BrokerUrl], _Answer] = {}  # by topic and broker
        self._seen: dict[str, tuple[TopicView, frozenset[Codec], float]] = {}  # the last verdict, and until when

    def allows(self, view: TopicView, codec: Codec) -> bool:
        """Return True if messages for *view*'s topic may be compressed with *codec*. Never raises.

        Waits for brokers that were never asked; known answers are refreshed without waiting.
        """
        now = time.monotonic()
        seen = self._seen.get(view.topic)
        if seen is None or seen[0] is not view or seen[2] <= now:
            codecs = [self._of((view.topic, *place), now) for place in view.urls.items()]
            common = frozenset[Codec].intersection(*codecs) if codecs else frozenset[Codec]()
            seen = view, common, now + REFRESH_S / 10
            with self._lock:
                self._seen[view.topic] = seen
        return codec in seen[1]

    def _of(self, place: tuple[str, int, BrokerUrl], now: float) -> frozenset[Codec]:
        with self._lock:
            answer = self._answers.get(place)
            is_new = answer is None
            if answer is None:
                answer = self._answers[place] = _Answer()
            if answer.asked_at + REFRESH_S > now and not is_new:
                return answer.codecs
            answer.asked_at = now  # other threads use the cached answer meanwhile
        try:
            self._refresh(place, answer, wait=is_new)
        except MetaError as error:
            answer.codecs = frozenset()
            _log.info("compression not known, sending without topic=%s broker=%d url=%s error=%s", *place, error)
        return answer.codecs

    def _refresh(self, place: tuple[str, int, BrokerUrl], answer: _Answer, *, wait: bool) -> None:
        topic, broker_id, url = place
        connection = self._connections.get(url, ANSWER_TIMEOUT_S, patient=False)
        capabilities = connection.capabilities(ANSWER_TIMEOUT_S)
        checked_broker(connection, capabilities, broker_id)
        if EXTENSION not in capabilities.extensions:
            answer.codecs = frozenset()
            return
        what = f"show {topic} at {url}"

        def hear(reply: PendingReply) -> None:  # on the reader thread, or on this one after waiting
            try:
                answer.codecs = _codecs(checked_result(reply.wait(ANSWER_TIMEOUT_S), what).text)
            except MetaError as error:
                answer.codecs = frozenset()
                _log.info("compression not known, sending without topic=%s broker=%d url=%s error=%s", *place, error)

        command = TopicCommand(TopicVerb.SHOW, topic, (), next_opaque())
        if wait:
            hear(connection.submit(command))
        else:
            connection.submit(command, hear)


def _codecs(text: str) -> frozenset[Codec]:
    """Parse the codecs from a broker's description of a topic; codecs unknown here (of a newer broker) are left out."""
    settings = dict(word.partition("=")[::2] for word in text.split())
    found = set()
    for label in settings.get("compression", "").split(","):
        try:
            found.add(codec_of(label))
        except ValueError:
            _log.debug("not a codec known here label=%s", label)
    return frozenset(found)
