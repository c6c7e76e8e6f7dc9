"""`[slave]`: the slave's id, and the master to follow."""

import re
from typing import Final

import msgspec

SLAVE_ID_MAX: Final = 999_999_999
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%A-Za-z0-9_-]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class SlaveSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[slave]`; the same as --slave-id and --master."""

    id: int | None = None  # unique among the slaves of one broker id
    master: str | None = None  # HOST:PORT; None: the master registered in ZooKeeper
    rejoin: bool = True  # a superseded master, or one with slave.json in its directory, becomes a slave
    full_resync: bool = False  # empty a directory with unusable records; else the slave stops with an error
    register: bool | None = None  # in ZooKeeper, for consumers; None: unless [replication] mode is "sync"


def why_not_slave(section: SlaveSection, *, is_slave: bool, has_zookeeper: bool) -> str | None:
    """Return what is wrong with *section*; None: nothing. *is_slave*: the broker's role."""
    if section.id is not None and not 0 <= section.id <= SLAVE_ID_MAX:
        return f"id {section.id}: a slave id is a number from 0 to {SLAVE_ID_MAX}"
    if section.master is not None:
        match = _ADDRESS.fullmatch(section.master)
        if match is None or not 1 <= int(match[2]) <= 65535:
            return f"master {section.master!r} is no HOST:PORT"
    if is_slave and section.id is None:
        return "a slave needs an id: give --slave-id N, unique among the slaves of this broker id"
    if is_slave and section.master is None and not has_zookeeper:
        return "a slave must find its master: give --zk, or --master HOST:PORT"
    return None
