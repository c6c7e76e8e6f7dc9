"""Buffer for an incomplete command."""

from meta_client.protocol.errors import RemoteProtocolError

CRLF = b"\r\n"


class ReceiveBuffer:
    """Rest of a chunk, held until a later chunk completes the command.

    Chunks are parsed in place; only split commands pass through here. Every byte is scanned once and copied at most
    twice, in pieces of any size. Owned by one decoder, whose Limits bound it: it holds part of a line, or part of a
    body, never both.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, tail: bytes) -> None:
        """Keep *tail*, the unused end of a chunk."""
        self._held += tail

    def maybe_line_with(self, chunk: bytes, bytes_max: int) -> tuple[bytes, int] | None:
        """Return the held bytes joined with *chunk* up to its first CRLF, and the position after it in *chunk*.

        None if there is no CRLF yet; *chunk* is then held too. Raises RemoteProtocolError once the line must be longer
        than *bytes_max*.
        """
        held = self._held
        if held.endswith(b"\r") and chunk.startswith(b"\n"):
            line, position = bytes(held[:-1]), 1
        elif (end := chunk.find(CRLF, 0, max(0, bytes_max + 2 - len(held)))) >= 0:
            line, position = bytes(held) + chunk[:end], end + 2
        else:
            check_line_length(len(held) + len(chunk), bytes_max)
            held += chunk
            return None
        held.clear()
        return line, position

    def maybe_take_with(self, chunk: bytes, count: int) -> tuple[bytes, int] | None:
        """Return *count* bytes, held ones first and then from *chunk*, and the position after them in *chunk*.

        None if there are fewer; *chunk* is then held too.
        """
        missing = count - len(self._held)
        assert missing > 0
        if len(chunk) < missing:
            self._held += chunk
            return None
        with memoryview(chunk) as view:
            taken = b"".join((self._held, view[:missing]))
        self._held.clear()
        return taken, missing

    def clear(self) -> None:
        """Drop the held bytes."""
        self._held.clear()


def check_line_length(found: int, bytes_max: int) -> None:
    """Raise RemoteProtocolError if *found* bytes without a CRLF can't begin a line of at most *bytes_max* bytes."""
    if found > bytes_max + 1:  # one more may be the CR of a CRLF to come
        raise RemoteProtocolError(f"a line is longer than line_bytes_max {bytes_max}; close the connection")
