"""What a running broker offers, and who hears when that changes: the journal of the decision, ZooKeeper of the rest."""

import dataclasses
import logging
from collections.abc import Collection, Mapping

from meta_broker.config import BrokerConfig, TopicConfig, load
from meta_broker.errors import ConfigError
from meta_broker.membership import Membership, topic_registration
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics, overruled, stored_partitions
from zk.registration import TopicRegistration

log = logging.getLogger(__name__)


class Offering:
    """A broker's topics, from the configuration file and from run-time decisions. Loop thread only.

    Processors tell it what happens to topics (processors.context.TopicListener).
    """

    def __init__(
        self, topics: Topics, store: MessageStore, membership: Membership | None, *, decides: bool = True
    ) -> None:
        """*decides*: it is a master's, which ends decisions that the file overrules; a slave's master does that."""
        self._topics = topics
        self._store = store
        self._membership = membership
        self._decides = decides
        self._end_overruled()

    def registrations(self) -> dict[str, TopicRegistration]:
        """Every named topic, and every topic that has messages."""
        held = {name.topic for name, span in self._store.source.state.spans.items() if span.start < span.end}
        found = self._registrations(held | self._topics.named)
        return {topic: registration for topic, registration in found.items() if registration is not None}

    def _registrations(self, topics: Collection[str]) -> dict[str, TopicRegistration | None]:
        """Registration of each of *topics*; None: it is not offered."""
        stored = stored_partitions(self._store.source.state, topics)
        return {topic: self._registration(topic, stored.get(topic, 0)) for topic in sorted(topics)}

    def _registration(self, topic: str, stored: int) -> TopicRegistration | None:
        if (section := self._topics.find(topic)) is None:
            # On disk, but no longer accepted: readable.
            return topic_registration(TopicConfig(accept_publish=False), stored) if stored else None
        return topic_registration(section, stored)

    def topic_used(self, topic: str) -> None:
        """A topic got its first message since the start."""
        if self._membership is not None and (section := self._topics.find(topic)) is not None:
            self._membership.topic_used(topic, topic_registration(section, section.partitions))

    def topic_changed(self, topic: str) -> None:
        """A decision about a topic is acknowledged."""
        self.topics_changed({topic})

    def topics_changed(self, topics: Collection[str]) -> None:
        """Announce many topics, as topic_changed does one: what is stored is looked at once."""
        for topic, registration in self._registrations(topics).items():
            if registration is None:
                self._topics.used.discard(topic)
            if self._membership is not None:
                self._membership.topic_changed(topic, registration)

    def follow_file(self, file: Mapping[str, TopicConfig]) -> list[str]:
        """The configuration file says this now; returns the topics that are offered differently for it.

        ZooKeeper hears of them once the decisions that this ends are acknowledged.
        """
        before = self.registrations()
        self._topics.replace_file(file)
        self._end_overruled()
        after = self.registrations()
        changed = {topic for topic in before.keys() | after.keys() if before.get(topic) != after.get(topic)}
        self._store.fence.after(self._store.journal.end, self.topics_changed, changed)
        return sorted(changed)

    def _end_overruled(self) -> None:
        decided = list(self._topics.decided.values()) if self._decides else []
        for change in overruled(decided, self._topics.file):
            self._store.transactions.change_topic(change)
            log.info("the configuration file decides again topic=%s", change.topic)
        self._topics.changed()


def read_again(config: BrokerConfig) -> BrokerConfig | None:
    """*config* with the topics that its file has now; None, and a line of log, when that is not possible.

    Blocks on the file. Only topics and filters are taken over: the rest is fixed while a broker runs.
    """
    if config.path is None:
        log.error("not reloaded: this broker was started without --config")
        return None
    try:
        fresh = load(
            config.path,
            data=config.data,
            broker_id=config.broker_id,
            port=config.port,
            zookeeper=config.zookeeper,
            role=config.role,
            slave_id=config.slave.id,
            master=config.slave.master,
        )
    except ConfigError as error:
        log.error("not reloaded, everything stays as it was error=%s", error)
        return None
    if (fresh.broker, fresh.zookeeper_section) != (config.broker, config.zookeeper_section):
        log.warning("only topics are reloaded: restart the broker for what changed in [broker] and [zookeeper]")
    return dataclasses.replace(config, topics=fresh.topics, filters=fresh.filters, source=fresh.source)
