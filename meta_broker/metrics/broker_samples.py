"""Samples of a broker's process, connections, requests and topics. Called on any thread."""

import time
from collections.abc import Iterator

from meta_broker.handlers.context import Context
from meta_broker.metrics import families as f
from meta_broker.metrics.status import BrokerStatus, OpenBroker
from meta_broker.version import PRODUCT_VERSION
from meta_client.admin.families import PAUSE_S, Sample

PARTITIONS_AT_ONCE = 2_000  # a fraction of a millisecond


def process_samples(status: BrokerStatus) -> Iterator[Sample]:
    """Yield what is known of a broker that starts, too."""
    config = status.config
    about = {"version": PRODUCT_VERSION, "cluster": config.broker.cluster, "broker_id": str(config.broker_id)}
    if config.is_slave:
        about["slave"] = str(config.slave.id)
    yield Sample(f.BROKER, about | {"role": config.role})
    yield Sample(f.READY, not status.why_not_ready())


def connection_samples(broker: OpenBroker) -> Iterator[Sample]:
    context, server = broker.context, broker.server
    if broker.membership is not None:
        yield Sample(f.REGISTERED, broker.membership.is_registered)
    yield Sample(f.LOOP_DELAY, context.loop_delay.delays())
    yield Sample(f.CONNECTIONS, context.counters.connections)
    yield Sample(f.CONNECTIONS_LIMIT, server.limit.connections_max)
    yield Sample(f.CONNECTIONS_REFUSED, server.limit.refused)
    if server.tls is not None and (ends := server.tls.ends) is not None:
        yield Sample(f.CERTIFICATE, ends - time.time())
    for principal, limit, totals in context.accounts.totals():
        yield Sample(f.QUOTA_THROTTLED, totals.throttled_s, (principal, limit))
        yield Sample(f.QUOTA_REFUSED, totals.refused, (principal, limit))
    yield Sample(f.RECEIVED_BYTES, server.receiving.total)
    yield Sample(f.UNSENT_BYTES, server.sending.total)
    yield Sample(f.ANSWERS_WAITING, len(context.store.high_watermark))
    yield Sample(f.FETCHES_WAITING, broker.dispatcher.fetches_waiting)


def request_samples(context: Context) -> Iterator[Sample]:
    counters = context.counters
    for verb, durations in context.times.snapshots():
        if any(durations.counts):  # else a broker exports the buckets of twenty verbs that nobody uses
            yield Sample(f.REQUEST_SECONDS, durations, (verb,))
    yield Sample(f.PUTS_FAILED, counters.puts_failed)
    yield Sample(f.GETS_MISSED, counters.gets_missed)
    yield Sample(f.UNREADABLE, counters.gets_unreadable)
    for topic, traffic in context.traffic.totals():
        yield Sample(f.MESSAGES_IN, traffic.messages_in, (topic,))
        yield Sample(f.BYTES_IN, traffic.bytes_in, (topic,))
        yield Sample(f.MESSAGES_OUT, traffic.messages_out, (topic,))
        yield Sample(f.BYTES_OUT, traffic.bytes_out, (topic,))


def topic_samples(context: Context) -> Iterator[Sample]:
    label_of = context.traffic.labels.of
    partitions: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for count, (name, index) in enumerate(list(context.store.indexes.by_name.items()), 1):
        topic = label_of(name.topic)
        partitions[topic] = partitions.get(topic, 0) + 1
        sizes[topic] = sizes.get(topic, 0) + index.end - index.start
        if count % PARTITIONS_AT_ONCE == 0:
            time.sleep(PAUSE_S)
    for topic, held in partitions.items():
        yield Sample(f.PARTITIONS, held, (topic,))
        yield Sample(f.TOPIC_BYTES, sizes[topic], (topic,))
    yield Sample(f.INDEXES_REBUILDING, len(context.store.indexes.damaged))
