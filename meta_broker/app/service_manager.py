"""Tells a service manager when a broker is ready and when it stops, by systemd's protocol of datagrams (sd_notify(3)).

Without a manager, which names its socket in NOTIFY_SOCKET, nothing happens. A manager that does not listen is no reason
to stop serving. Stands alone: the command and the broker both tell.
"""

import contextlib
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def notify(*states: str) -> None:
    """Send *states*, each KEY=value, as one datagram. Any thread."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto("\n".join(states).encode(), address)
