"""Validation of topic names. Pure. Stands alone: the configuration and decisions at run time share it."""

from journal.records.record import TOPIC_BYTES_MAX
from zk.tree.paths import InvalidName, check_name

NAME_BYTES_MAX = TOPIC_BYTES_MAX - 55  # room for what file names and records add


def why_not_a_topic(name: str) -> str | None:
    """Return why *name* is no valid topic name for command lines, file names and ZooKeeper paths; None if it is."""
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        return f"a topic name is 1 to {NAME_BYTES_MAX} bytes long"
    try:
        check_name(name)
        is_node = name.isprintable() and not any(map(str.isspace, name))
    except InvalidName:
        is_node = False
    return None if is_node else "a topic name holds no slash, white space or character that ZooKeeper refuses"
