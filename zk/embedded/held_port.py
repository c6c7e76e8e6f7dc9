"""Holds a port for a server that starts later, or again: nobody else is given it meanwhile."""

import contextlib
import socket


class HeldPort:
    """A port of *address*. While it is held, connections are refused and another process may bind it by its number, if
    that sets SO_REUSEADDR; but the kernel gives it to nobody who asks for any port."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def hold(self, port: int) -> None:
        """Hold *port*, unless somebody has it, and no longer another one. 0: none."""
        if self._socket is not None and port == self._socket.getsockname()[1]:
            return
        self.release()
        if port:
            with contextlib.suppress(OSError):  # a server that starts there says that it is taken
                self._bind(port)

    def hold_any(self) -> int:
        """Hold a port that nobody has, and return it. Raises OSError."""
        self.release()
        return self._bind(0)

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _bind(self, port: int) -> int:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((self._address, port))
        bound: int = self._socket.getsockname()[1]
        return bound

    def __del__(self) -> None:
        self.release()
