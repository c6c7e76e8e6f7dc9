"""TLS towards brokers: the configuration, and a socket that two threads may use."""

import _ssl
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from meta_client.errors import InvalidSecurity

_RECEIVE_BYTES = 16 * 1024  # during a handshake


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Encryption of connections to brokers, and the check that they are the right ones. Immutable.

    *ca*: file with the certificates that sign the brokers'; without it, the system's. *certificate* and *key*: this
    client's own, for brokers that ask for one; the key may be in the certificate's file. *check_host*: the broker's
    certificate must name the host that is connected to.

    Every connection of a client that has it speaks TLS, to every broker: it never falls back to a plain one. The files
    are read for each connection, so that renewed ones are used.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a client's context with the files as they are now. Raises InvalidSecurity, which names the file."""
        try:
            made = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError too
            raise InvalidSecurity(
                f"TLS: the CA file {self.ca} can't be used ({_reason(error)}): name a PEM file"
            ) from error
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.check_hostname = self.check_host
        if self.certificate is not None:
            load_certificate(made, self.certificate, self.key)
        elif self.key is not None:
            raise InvalidSecurity(f"TLS: the key {self.key} needs its certificate: name both")
        return made


def load_certificate(
    context: ssl.SSLContext, certificate: str | os.PathLike[str], key: str | os.PathLike[str] | None
) -> None:
    """Load an own certificate with its key. Raises InvalidSecurity, which names the files."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} with the key {key}"
        raise InvalidSecurity(f"TLS: the certificate {files} can't be used: {_reason(error)}") from error


class Validity(NamedTuple):
    """First and last second of a certificate, since 1970."""

    begins: float
    ends: float


def certificate_validity(certificate: str | os.PathLike[str]) -> Validity | None:
    """Return when the first certificate of a PEM file holds; None if it can't be told."""
    # The one way that the standard library has to read one; not a public one.
    decode: Callable[[str], dict[str, str]] | None = getattr(_ssl, "_test_decode_cert", None)
    if decode is None:
        return None
    try:
        found = decode(os.fspath(certificate))
        return Validity(*(float(ssl.cert_time_to_seconds(found[key])) for key in ("notBefore", "notAfter")))
    except (OSError, ValueError):  # ssl.SSLError too
        return None


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask the terminal."""
    raise ValueError("the key is encrypted: store it without a password, readable by this user alone")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror) or str(error)


class ByteStream(Protocol):
    """A connected socket, as a connection uses it: plain, or with TLS."""

    def fileno(self) -> int: ...

    def sendall(self, data: bytes | memoryview, /) -> None: ...

    def recv(self, size: int, /) -> bytes:
        """Return bytes, empty at the end. Raises ssl.SSLWantReadError if there are none yet, OSError."""

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class TlsSocket:
    """A socket with TLS. One thread may send while another one receives.

    Python's own would have both enter OpenSSL at once, which it does not allow: here a lock is held while bytes are
    encrypted or decrypted, and not while a thread waits for the network. What TLS itself has to say between two
    messages leaves with the next one that is sent.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """Shake hands over *connected*, within *timeout_s*. Raises OSError, ssl.SSLError included."""
        self._socket = connected
        self._lock = threading.Lock()  # guards the next three
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        until = time.monotonic() + timeout_s
        while not self._shake():
            connected.settimeout(max(until - time.monotonic(), 0.001))
            if not (chunk := connected.recv(_RECEIVE_BYTES)):
                raise ConnectionResetError("it ended during the TLS handshake: does this port speak TLS?")
            self._incoming.write(chunk)

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._socket.sendall(self._outgoing.read())  # an alert, too
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def sendall(self, data: bytes | memoryview, /) -> None:
        left = memoryview(data)
        with self._lock:
            while left:
                left = left[self._tls.write(left) :]
            encrypted = self._outgoing.read()
        self._socket.sendall(encrypted)  # in order: one thread sends at a time

    def recv(self, size: int, /) -> bytes:
        received = self._socket.recv(size)
        if not received:
            return b""
        pieces: list[bytes] = []
        with self._lock:
            self._incoming.write(received)
            try:
                while piece := self._tls.read(size):
                    pieces.append(piece)
            except ssl.SSLWantReadError:
                if not pieces:
                    raise
            except ssl.SSLZeroReturnError:
                pass  # the peer's goodbye
        return b"".join(pieces)

    def shutdown(self, how: int, /) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()
