"""`metaq groups`: what ZooKeeper and the brokers say about consumer groups. `metaq topics` is found here, too."""

from collections.abc import Mapping

import click

from meta_client.calls import wait_result
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.cli.topics import topics
from meta_client.client import Client
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.consumer.plan import TopicPartition, plan_routes
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import parse_offset
from meta_client.protocol.errors import MetaError, NotFound
from meta_client.protocol.requests import OFFSET_END, OffsetQuery
from zk.cluster import read_brokers
from zk.groups import GroupListing, PartitionProgress, list_group, list_groups

__all__ = ["groups", "topics"]

OFFSET_TIMEOUT_S = 5.0


@click.command()
@click.argument("group", required=False)
@zk_option
@json_option
def groups(group: str | None, zk: str, as_json: bool) -> None:
    """List consumer groups, or one GROUP: per partition its owner, the group's offset, the end, and the lag.

    Offset and lag are in bytes of message frames, as offsets are. They are missing where the group has
    stored nothing, or keeps its offsets elsewhere; the end is, where the partition's broker does not answer.
    """
    with connected(zk) as client:
        listings = list_groups(client.session) if group is None else [list_group(client.session, group)]
        partitions = {(p.topic, p.partition) for listing in listings for p in listing.progress}
        ends = _ends(client, partitions)
    rows = [_group_row(listing, progress, ends) for listing in listings for progress in listing.progress]
    columns = ("group", "topic", "partition", "offset", "end", "lag", "owner")
    print_rows(columns, rows, as_json=as_json, empty="no consumer group has read anything yet")


def _group_row(
    listing: GroupListing, progress: PartitionProgress, ends: Mapping[TopicPartition, int]
) -> dict[str, object]:
    end = ends.get((progress.topic, progress.partition))
    offset = None if progress.stored is None else progress.stored.offset
    return {
        "group": listing.group,
        "topic": progress.topic,
        "partition": str(progress.partition),
        "offset": offset,
        "end": end,
        "lag": None if end is None or offset is None else max(0, end - offset),
        "owner": progress.owner,
    }


def _ends(client: Client, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """Where each partition ends, asked of the brokers that are up. Who does not answer is named on stderr."""
    routes = plan_routes(read_brokers(client.session))
    ends: dict[TopicPartition, int] = {}
    silent: set[int] = set()
    for topic, partition in sorted(partitions):
        broker_id = partition.broker_id
        url = routes.get(broker_id)
        if url is None or broker_id in silent:
            continue
        query = OffsetQuery(topic, "metaq-cli", partition.number, OFFSET_END, next_opaque())
        try:
            reply = client.connections.get(url, CONNECT_TIMEOUT_S).submit(query)
            ends[topic, partition] = parse_offset(
                wait_result(reply, OFFSET_TIMEOUT_S, f"offset {topic}/{partition}").message
            )
        except NotFound:
            ends[topic, partition] = 0  # nothing was ever put there
        except MetaError as error:
            silent.add(broker_id)
            click.echo(f"warning: the ends of broker {broker_id}'s partitions are missing: {error}", err=True)
    return ends
