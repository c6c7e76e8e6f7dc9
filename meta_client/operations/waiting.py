"""Reports on stderr why a reading command waits: once when waiting begins, and once when it ends."""

import time
from typing import Final

import click

from meta_client.client import Client
from meta_client.operations.placement import partitions_of
from meta_client.protocol.errors import one_line
from zk.errors import ZooKeeperUnavailable
from zk.groups.ownership import read_owned

OWNED_S: Final = 3.0  # rebalancing is over after this time


def has_zookeeper(client: Client) -> bool:
    """Return True if ZooKeeper answers, as far as is known. A lease outlives the connection for a while."""
    return client.session.is_connected and client.session.lease.is_valid()


class Waiting:
    """Reports on one topic. One thread."""

    def __init__(self, topic: str, zookeeper: str, group: str | None = None) -> None:
        """*zookeeper*: the brokers' ZooKeeper, as named by the user."""
        self._topic = topic
        self._zookeeper = zookeeper
        self._group = group
        self._shown: str | None = None
        self._idle_since: float | None = None  # the topic is offered, and we own none of it

    def poll(self, client: Client) -> None:
        """Report a new reason why nothing can be read yet. Raises MalformedNode."""
        if self._group is not None and not has_zookeeper(client):
            self._print_change(
                f"waiting: ZooKeeper {self._zookeeper} does not answer, which alone tells the partitions of "
                f"{self._topic} that this member has"
            )
            return
        try:
            offered = partitions_of(client, self._topic)
        except ZooKeeperUnavailable as error:
            self._print_change(f"waiting: {one_line(error)}")
        else:
            owned = set(offered) if self._group is None else read_owned(client.session, self._group, self._topic)
            self.update(is_offered=bool(offered), is_free=not owned.issuperset(offered))

    def update(self, *, is_offered: bool, is_reading: bool = False, is_free: bool = False) -> None:
        """Report a change: *is_offered*: a broker offers the topic; *is_reading*: this member owns part of it;
        *is_free*: nobody owns some of it."""
        if not is_offered:
            self._idle_since = None
            self._print_change(
                f"waiting: no broker offers {self._topic} in ZooKeeper {self._zookeeper}: start one that does, or "
                "correct the name: see `metaq topics`"
            )
        elif is_reading or self._group is None:
            self._idle_since = None
            self._print_change(None)
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since >= OWNED_S and is_free:
            self._print_change(
                f"waiting: nobody owns some partitions of {self._topic}, nor can this member: the log says why"
            )
        elif time.monotonic() - self._idle_since >= OWNED_S:
            self._print_change(
                f"waiting: other members of group {self._group} own every partition of {self._topic}: "
                f"see `metaq groups describe {self._group}`"
            )

    def _print_change(self, text: str | None) -> None:
        if text != self._shown:
            click.echo(text or f"going on: {self._topic} can be read now", err=True)
        self._shown = text
