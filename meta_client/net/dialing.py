"""Makes the socket of a connection to a broker."""

import socket
import struct
from typing import Final

from meta_client.errors import InvalidSecurity, NotConnected
from meta_client.net.tls import ByteStream, TlsConfig, TlsSocket
from zk.tree.broker_url import BrokerUrl

IO_TIMEOUT_S: Final = 10  # a broker that takes no byte for this long counts as gone; reads wait in poll() instead


def connected_socket(url: BrokerUrl, timeout_s: float, tls: TlsConfig | None = None) -> ByteStream:
    """Return a blocking socket connected to *url*, with *tls* if it is given. Raises NotConnected."""
    try:
        context = None if tls is None else tls.context()
    except InvalidSecurity as error:
        raise NotConnected(f"no connection to {url}: {error}") from error
    try:
        connected = socket.create_connection((url.host, url.port), timeout=timeout_s)
    except OSError as error:
        raise NotConnected(f"no connection to {url} ({error}): is the broker up and its port reachable?") from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stream: ByteStream = connected
        if context is not None:
            try:
                stream = TlsSocket(connected, context, url.host, timeout_s)
            except OSError as error:
                raise NotConnected(f"no TLS connection to {url}: {error}") from error
        # The system's time limits: Python's own would call poll() before every operation.
        connected.settimeout(None)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", IO_TIMEOUT_S, 0))
    except BaseException:
        connected.close()
        raise
    return stream
