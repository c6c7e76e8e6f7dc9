"""Topic commands that a broker's limits or settings refuse; the others are in handlers/test_topic_commands."""

import pytest

from journal.records.topic_changes import TopicChange
from meta_broker.config.broker_config import TopicConfig
from meta_broker.store.topic_decisions import DECISIONS_MAX, KnownTopic, TopicCommandRejected, plan_change
from meta_client.protocol.requests import TopicVerb


def known(section: TopicConfig | None, change: TopicChange | None = None, decisions: int = 0) -> KnownTopic:
    return KnownTopic(topic="t", section=section, settings=section, change=change, stored=0, decisions=decisions)


def test_decisions_are_bounded_and_those_about_a_topic_of_one_are_not() -> None:
    change = plan_change(TopicVerb.CREATE, known(None), {})
    assert change is not None
    with pytest.raises(TopicCommandRejected, match="10000 topics were changed at run time: write some into"):
        plan_change(TopicVerb.CREATE, known(None, decisions=DECISIONS_MAX), {})
    again = plan_change(TopicVerb.ALTER, known(TopicConfig(), change, DECISIONS_MAX), {"partitions": "2"})
    assert again is not None


def test_compression_ends_with_none() -> None:
    change = plan_change(TopicVerb.ALTER, known(TopicConfig(compression=("lz4",))), {"compression": "none"})
    assert change is not None
    assert change.compression == ()
