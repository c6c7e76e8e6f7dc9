"""Announces a running broker's topics in ZooKeeper, and journals the end of decisions that the file overrules."""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics, overruled, stored_partitions, used_partitions
from zk.brokers.registration import TopicRegistration

log = logging.getLogger(__name__)


class TopicRegistry(Protocol):
    """Registers topics in ZooKeeper, in its own time."""

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        """Announce a topic that got its first message. Returns at once."""

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        """Announce a topic's new registration, or (None) withdraw it. Returns at once."""


class TopicAnnouncer:
    """A broker's topics, from the configuration file and from run-time decisions. Loop thread only."""

    def __init__(
        self, topics: Topics, store: MessageStore, registry: TopicRegistry | None, *, decides: bool = True
    ) -> None:
        """*registry* None: there is no ZooKeeper. *decides*: for a master, which ends decisions that the file
        overrules; a slave's master does that."""
        self._topics = topics
        self._store = store
        self._registry = registry
        self._decides = decides
        self._end_overruled()

    def registrations(self) -> dict[str, TopicRegistration]:
        """Return the registrations of every named topic, and of every topic that has messages, or may have."""
        used = {name.topic for name in used_partitions(self._store.source.state)}
        found = self._registrations(used | self._topics.named)
        return {topic: registration for topic, registration in found.items() if registration is not None}

    def _registrations(self, topics: Collection[str]) -> dict[str, TopicRegistration | None]:
        """Return the registration of each of *topics*; None: it is not offered."""
        stored = stored_partitions(self._store.source.state, topics)
        return {topic: self._registration(topic, stored.get(topic, 0)) for topic in sorted(topics)}

    def _registration(self, topic: str, stored: int) -> TopicRegistration | None:
        if (section := self._topics.find(topic)) is None:
            # On disk, but no longer accepted: readable.
            return topic_registration(TopicConfig(accept_publish=False), stored) if stored else None
        return topic_registration(section, stored)

    def topic_used(self, topic: str) -> None:
        """Announce a topic that got its first message since the start."""
        if self._registry is not None and (section := self._topics.find(topic)) is not None:
            self._registry.topic_used(topic, topic_registration(section, section.partitions))

    def topic_changed(self, topic: str) -> None:
        """Announce a topic after an acknowledged decision about it."""
        self.topics_changed({topic})

    def topics_changed(self, topics: Collection[str]) -> None:
        """Announce many topics, scanning the partitions once."""
        for topic, registration in self._registrations(topics).items():
            if registration is None:
                self._topics.used.discard(topic)
            if self._registry is not None:
                self._registry.topic_changed(topic, registration)

    def announce(self, used: Sequence[str], decided: Sequence[str]) -> None:
        """Announce topics that got their first message in a copy, or were decided about."""
        topics = self._topics
        topics.used.update(used)
        if decided:
            topics.changed()
        for topic in used:
            self.topic_used(topic)
        # Stored partitions of topics without a section are looked up together: there may be thousands.
        if changed := {*decided, *(topic for topic in used if topics.find(topic) is None)}:
            self.topics_changed(changed)

    def follow_file(self, file: Mapping[str, TopicConfig]) -> list[str]:
        """Apply the configuration file's topics; return those whose registration changes.

        They are announced once the decisions that this ends are acknowledged.
        """
        before = self.registrations()
        self._topics.replace_file(file)
        self._end_overruled()
        after = self.registrations()
        changed = {topic for topic in before.keys() | after.keys() if before.get(topic) != after.get(topic)}
        self._store.high_watermark.run_after(self._store.journal.end, self.topics_changed, changed)
        return sorted(changed)

    def _end_overruled(self) -> None:
        decided = list(self._topics.decided.values()) if self._decides else []
        for change in overruled(decided, self._topics.file):
            self._store.transactions.change_topic(change)
            log.info("run-time decision ended by the configuration file topic=%s", change.topic)
        self._topics.changed()


def reload(config: BrokerConfig) -> BrokerConfig | None:
    """Return *config* with its file's present topics; None, after logging why, if that fails.

    Blocks on the file. Topics, filters, TLS, access rules and quotas are reloaded: the rest is fixed while a broker
    runs.
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
        log.warning(
            "only topics, filters, TLS, access and quotas are reloaded: restart the broker for what changed in "
            "[broker] and [zookeeper]"
        )
    if (fresh.admin.host, fresh.admin.token_file) != (config.admin.host, config.admin.token_file):
        log.warning("[admin] is changed by a restart alone, apart from the token in its file")
    if fresh.tls.is_on != config.tls.is_on:
        log.warning("TLS is turned on and off by a restart alone")
    if (fresh.rules is None) != (config.rules is None):
        log.warning("access rules are turned on and off by a restart alone")
    rules = fresh.rules if config.rules is not None and fresh.rules is not None else config.rules
    tls = fresh.tls if fresh.tls.is_on and config.tls.is_on else config.tls
    return dataclasses.replace(
        config,
        topics=fresh.topics,
        filters=fresh.filters,
        source=fresh.source,
        tls=tls,
        rules=rules,
        address_quota=fresh.address_quota,
    )


def topic_registration(topic: TopicConfig, partitions: int) -> TopicRegistration:
    """Return a topic's registration. *partitions* counts stored ones too, which stay readable."""
    return TopicRegistration(
        max(partitions, topic.partitions),
        accept_publish=topic.accept_publish,
        accept_subscribe=topic.accept_subscribe,
    )
