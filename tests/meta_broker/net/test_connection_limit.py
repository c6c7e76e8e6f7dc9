"""A connection too many over TLS, which has no half-closed state: it reads the reason, and hangs up."""

import asyncio
from types import SimpleNamespace
from typing import cast

from meta_broker.net.connection_limit import ConnectionLimit, limit_reply
from meta_broker.net.identified import Identified
from tests.fixtures.loops import in_loop


class TlsTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


@in_loop
async def test_it_is_told_why_without_an_end_of_the_stream() -> None:
    limit, transport = ConnectionLimit(asyncio.get_running_loop(), 1, 1), TlsTransport()
    assert not limit.admits(
        transport, cast(Identified, SimpleNamespace(name="10.0.0.9:1", network="10.0.0.9")), None, 1
    )
    assert (transport.written, limit.refused) == (limit_reply(1), 1)
    assert isinstance(transport.protocol, asyncio.Protocol)
    transport.protocol.connection_lost(None)
    limit.abort()  # it is gone
