"""Requests that take the loop long: of one connection, one between two turns."""

import asyncio

from meta_broker.processors.context import Peer


def end_turn(peer: Peer) -> None:
    """What is handled looked at every partition, or every branch: the next request of *peer* waits for the next turn of
    the loop, so that others do not wait until as many are done as came together."""
    peer.hold()
    asyncio.get_running_loop().call_soon(peer.go_on)
