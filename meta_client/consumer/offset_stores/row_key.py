"""Key of an offset in a table. Pure.

The table is the ancestor's (spec 8.10): one row per group, topic and partition, with the group in `group_id`, where the
ancestor inserts a consumer's id and so never finds the row again.
"""

from typing import Final, NamedTuple

from meta_client.consumer.offset_stores.errors import OffsetsMalformed
from zk.tree.nodes import Partition

TABLE: Final = "meta_topic_partition_group_offset"
TEXT_MAX: Final = 255  # characters of a topic and of a group: the key's columns fit into every database's keys
PARTITION_MAX: Final = 21  # "2147483647-2147483647"


class OffsetRowKey(NamedTuple):
    topic: str
    partition: str
    group_id: str


def row_key(topic: str, partition: Partition, group: str) -> OffsetRowKey:
    """Return the key of a row. Raises OffsetsMalformed for a topic or group longer than the table's columns."""
    for name in (topic, group):
        if len(name) > TEXT_MAX:
            raise OffsetsMalformed(f"{name[:40]!r}... has {len(name)} characters, a table takes {TEXT_MAX}: rename it")
    return OffsetRowKey(topic, str(partition), group)
