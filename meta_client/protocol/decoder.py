"""Bytes to commands: takes received chunks, returns every complete command (spec 1.1)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import force_setattr

from meta_client.protocol.body_buffers import REUSED_BYTES_MAX, REUSED_BYTES_MIN, BodyBuffers
from meta_client.protocol.buffer import CRLF, ReceiveBuffer, check_line_length
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.limits import Limits
from meta_client.protocol.request_lines import parse_request_line, plain_requests
from meta_client.protocol.requests import Body, Dropped, MultiPut, Put, Request, Sync
from meta_client.protocol.response_lines import parse_response_line, plain_results
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.status import Status

Command = TypeVar("Command")
# Appends the commands of a chunk from a position on to a list, until one that it leaves; returns that one's position.
# Takes the limits of a line and of a body, too.
Plain = Callable[[bytes, int, list[Any], int, int], int]
_LINE_QUOTED_MAX = 100  # untrusted, and part of a one-line error


class _Decoder(ABC, Generic[Command]):
    """The parser of lines and bodies for both directions. One per connection, one caller at a time.

    With *buffers*, the body of a large command that arrives in parts is a view of one of them; others are bytes. The
    caller may receive the rest of such a body directly into `body_room`.
    """

    def __init__(
        self,
        parse_line: Callable[[bytes], tuple[Command, int]],
        limits: Limits,
        buffers: BodyBuffers | None,
        plain: Plain | None,
    ) -> None:
        """*plain*: the native core's decoder of the most frequent commands, which leaves others to *parse_line*."""
        self._parse_line = parse_line
        self._plain = plain
        self._buffers = buffers
        self._body: memoryview | None = None  # of the unfinished command, if it is in a buffer
        self._filled = 0  # bytes of it
        self._limits = limits
        self._buffer = ReceiveBuffer()
        self._unfinished: tuple[Command, int] | None = None  # its line is parsed, its body incomplete
        self._passing_over = 0  # remaining bytes of a discarded body
        self._failure: str | None = None
        self._completed: list[Command] = []

    def limit(self, limits: Limits) -> None:
        """Apply *limits* to what is received from now on."""
        self._limits = limits

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of an incomplete command: at most a line and a CR, or a body, of the Limits."""
        return len(self._buffer) if self._body is None else self._filled

    @property
    def is_between_commands(self) -> bool:
        """True if the stream may end here without splitting a command."""
        return self._unfinished is None and not self._buffer and not self._passing_over

    @property
    def body_bytes_held(self) -> int:
        """Bytes of memory held for an incomplete body."""
        if self._body is not None:
            return len(self._body)
        return len(self._buffer) if self._unfinished is not None else 0

    @property
    def body_room(self) -> memoryview | None:
        """The missing part of an incomplete body in a buffer: receive into it and call `body_received`. None: receive a
        chunk, for `receive_data`, which is possible at any time."""
        return None if self._body is None else self._body[self._filled :]

    def body_received(self, count: int) -> list[Command]:
        """Return the command that *count* bytes, received at the front of `body_room`, complete."""
        assert self._body is not None
        assert self._unfinished is not None
        self._filled += count
        if self._filled < len(self._body):
            return []
        command, _ = self._unfinished
        self._unfinished, body, self._body = None, self._body, None
        return [self._with_body(command, body)]

    @property
    def completed_before_failure(self) -> list[Command]:
        """After receive_data has raised: the complete commands before the bad bytes, in the same chunk."""
        return self._completed

    def receive_data(self, chunk: bytes) -> list[Command]:
        """Return every command that *chunk* completes, in order.

        Raises RemoteProtocolError, also on every later call, for bytes that can never be a command: close the
        connection without an answer.
        """
        if self._failure is not None:
            raise RemoteProtocolError(self._failure)
        commands: list[Command] = []
        try:
            self._receive(chunk, commands)
        except RemoteProtocolError as error:
            self._failure, self._completed, self._unfinished = str(error), commands, None
            self._buffer.clear()
            self._body = None
            raise
        return commands

    def _receive(self, chunk: bytes, commands: list[Command]) -> None:
        # A hot loop of the broker: locals, and one call per command besides its parser.
        line_bytes_max, body_bytes_max = self._limits.line_bytes_max, self._limits.body_bytes_max
        parse_line, plain, chunk_end = self._parse_line, self._plain, len(chunk)
        position = 0  # first unused byte of the chunk
        line: bytes | None = None
        if self._passing_over:
            position = min(self._passing_over, chunk_end)
            self._passing_over -= position
        elif self._body is not None:
            position = min(len(self._body) - self._filled, chunk_end)
            with memoryview(chunk)[:position] as part:
                self._body[self._filled : self._filled + position] = part
            commands += self.body_received(position)
        elif self._unfinished is not None:
            command, length = self._unfinished
            if (body_and_position := self._buffer.maybe_take_with(chunk, length)) is None:
                return
            self._unfinished = None
            body, position = body_and_position
            commands.append(self._with_body(command, body))
        elif self._buffer:
            if (line_and_position := self._buffer.maybe_line_with(chunk, line_bytes_max)) is None:
                return
            line, position = line_and_position
        while line is not None or position < chunk_end:
            if line is None:
                if plain is not None:
                    position = plain(chunk, position, commands, line_bytes_max, body_bytes_max)
                    if position == chunk_end:
                        break
                if (end := chunk.find(CRLF, position, position + line_bytes_max + 2)) < 0:
                    check_line_length(chunk_end - position, line_bytes_max)
                    break
                line = chunk[position:end]
                position = end + 2
            try:
                command, length = parse_line(line)
            except ValueError as error:
                raise RemoteProtocolError(f"{line[:_LINE_QUOTED_MAX]!r}: {error}; close the connection") from error
            if length:
                if length > body_bytes_max:
                    reason = f"a body of {length} bytes is longer than body_bytes_max {body_bytes_max}"
                    commands.append(self._too_long(command, line, reason))
                    passed_over = min(length, chunk_end - position)
                    self._passing_over = length - passed_over
                    position += passed_over
                    line = None
                    continue
                if (end := position + length) > chunk_end:
                    self._unfinished = command, length
                    if self._buffers is not None and REUSED_BYTES_MIN <= length <= REUSED_BYTES_MAX:
                        self._body, self._filled = self._buffers.allocate(length), chunk_end - position
                        with memoryview(chunk)[position:] as part:
                            self._body[: self._filled] = part
                        return
                    break
                command = self._with_body(command, chunk[position:end])
                position = end
            commands.append(command)
            line = None
        if position < chunk_end:
            self._buffer.hold(chunk[position:])

    def _too_long(self, command: Command, line: bytes, reason: str) -> Command:
        """Return the replacement for *command*, whose body is discarded. Raises RemoteProtocolError if there is
        none."""
        del command
        raise RemoteProtocolError(f"{line[:_LINE_QUOTED_MAX]!r}: {reason}; close the connection")

    @abstractmethod
    def _with_body(self, command: Command, body: Body) -> Command:
        """Complete *command*, as returned by its line's parser."""


class RequestDecoder(_Decoder[Request | Dropped]):
    """A broker's decoder. Responses are rejected like any unknown word.

    A body beyond its bound is discarded without using memory: the sender gets an error, and the connection continues.
    """

    def __init__(self, limits: Limits | None = None, buffers: BodyBuffers | None = None) -> None:
        super().__init__(parse_request_line, limits or Limits(), buffers, plain_requests())

    def drop_body(self, reason: str) -> Dropped:
        """Discard the incomplete body (body_bytes_held is above 0) and its remaining bytes."""
        assert self._unfinished is not None
        command, length = self._unfinished
        assert isinstance(command, (Put, MultiPut, Sync))
        self._passing_over = length - self.buffered_bytes
        self._unfinished = self._body = None
        self._buffer.clear()
        return Dropped(command.opaque, Status.UNAVAILABLE, reason)

    def _too_long(self, command: Request | Dropped, line: bytes, reason: str) -> Dropped:
        del line
        assert isinstance(command, (Put, MultiPut, Sync))
        return Dropped(command.opaque, Status.BAD_REQUEST, f"{reason}: send less at once")

    def _with_body(self, command: Request | Dropped, body: Body) -> Request:
        assert isinstance(command, (Put, MultiPut, Sync))
        force_setattr(command, "body", body)  # nobody has seen it yet
        return command


class ResponseDecoder(_Decoder[Response]):
    """A client's decoder."""

    def __init__(self, limits: Limits | None = None, buffers: BodyBuffers | None = None) -> None:
        super().__init__(parse_response_line, limits or Limits(), buffers, plain_results())

    def _with_body(self, command: Response, body: Body) -> Response:
        if isinstance(command, Result):
            command.message = bytes(body)
        else:
            command.body = body
        return command
