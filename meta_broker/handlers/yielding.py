"""Yielding to other connections after requests that take long."""

import asyncio

from meta_broker.handlers.context import Peer


def yield_after(peer: Peer) -> None:
    """Pause *peer* until the next turn of the loop, after a request that scanned every partition or branch.

    Otherwise others would wait for all such requests that arrived together.
    """
    peer.pause()
    asyncio.get_running_loop().call_soon(peer.resume)
