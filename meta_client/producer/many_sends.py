"""Sending many messages at once: to the partitions chosen for them, or into a transaction."""

from collections import defaultdict
from collections.abc import Sequence

from meta_client.metadata.topology import TopicView
from meta_client.producer.interfaces import Adds, Gatherer
from meta_client.producer.many_handle import JoinedHandle, SendManyHandle
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import Outgoing, RoundRobin
from zk.tree.nodes import Partition


def send_run(
    sender: Gatherer, topic: str, run: MessageRun, chosen: Sequence[Partition | None] | None
) -> SendManyHandle:
    """Send *run* by way of *sender*, each message to the partition that is *chosen* for it, if any. Raises as
    Sender.add_run."""
    if chosen is None:
        return SendManyHandle(sender.add_run(topic, None, run), len(run))
    places: defaultdict[Partition | None, list[int]] = defaultdict(list)
    for index, partition in enumerate(chosen):
        places[partition].append(index)
    parts: list[RunPart] = []
    for wanted, indexes in places.items():
        added = sender.add_run(topic, wanted, run.select(indexes))
        parts += [part._replace(indexes=[indexes[each] for each in part.indexes]) for part in added]
    return SendManyHandle(parts, len(run))


def add_run(
    within: Adds, view: TopicView, run: MessageRun, chosen: Sequence[Partition | None], choice: RoundRobin
) -> JoinedHandle:
    """Add the messages of *run* to a transaction, or branch. Raises what that raises."""
    return JoinedHandle(
        [
            within.add(Outgoing(view, flag, body, wanted, choice))
            for flag, body, wanted in zip(run.flags, run.bodies, chosen, strict=True)
        ]
    )
