"""Bytes to commands: takes received chunks, returns every complete command (spec 1.1)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec.structs import force_setattr

from meta_client.protocol.buffer import CRLF, ReceiveBuffer, check_line_length
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.limits import Limits
from meta_client.protocol.request_lines import parse_request_line
from meta_client.protocol.requests import Dropped, MultiPut, Put, Request, Sync
from meta_client.protocol.response_lines import parse_response_line
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.status import Status

Command = TypeVar("Command")
_LINE_QUOTED_MAX = 100  # untrusted, and part of a one-line error


class _Decoder(ABC, Generic[Command]):
    """The parser of lines and bodies for both directions. One per connection, one caller at a time."""

    def __init__(self, parse_line: Callable[[bytes], tuple[Command, int]], limits: Limits) -> None:
        self._parse_line = parse_line
        self._limits = limits
        self._buffer = ReceiveBuffer()
        self._unfinished: tuple[Command, int] | None = None  # its line is parsed, its body incomplete
        self._passing_over = 0  # remaining bytes of a discarded body
        self._failure: str | None = None
        self._completed: list[Command] = []

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of an incomplete command: at most a line and a CR, or a body, of the Limits."""
        return len(self._buffer)

    @property
    def is_between_commands(self) -> bool:
        """True if the stream may end here without splitting a command."""
        return self._unfinished is None and not self._buffer and not self._passing_over

    @property
    def body_bytes_held(self) -> int:
        """Bytes held of an incomplete body."""
        return len(self._buffer) if self._unfinished is not None else 0

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
            raise
        return commands

    def _receive(self, chunk: bytes, commands: list[Command]) -> None:
        # A hot loop of the broker: locals, and one call per command besides its parser.
        line_bytes_max, body_bytes_max = self._limits.line_bytes_max, self._limits.body_bytes_max
        parse_line, chunk_end = self._parse_line, len(chunk)
        position = 0  # first unused byte of the chunk
        line: bytes | None = None
        if self._passing_over:
            position = min(self._passing_over, chunk_end)
            self._passing_over -= position
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
    def _with_body(self, command: Command, body: bytes) -> Command:
        """Complete *command*, as returned by its line's parser."""


class RequestDecoder(_Decoder[Request | Dropped]):
    """A broker's decoder. Responses are rejected like any unknown word.

    A body beyond its bound is discarded without using memory: the sender gets an error, and the connection continues.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(parse_request_line, limits or Limits())

    def drop_body(self, reason: str) -> Dropped:
        """Discard the incomplete body (body_bytes_held is above 0) and its remaining bytes."""
        assert self._unfinished is not None
        command, length = self._unfinished
        assert isinstance(command, (Put, MultiPut, Sync))
        self._passing_over = length - len(self._buffer)
        self._unfinished = None
        self._buffer.clear()
        return Dropped(command.opaque, Status.UNAVAILABLE, reason)

    def _too_long(self, command: Request | Dropped, line: bytes, reason: str) -> Dropped:
        del line
        assert isinstance(command, (Put, MultiPut, Sync))
        return Dropped(command.opaque, Status.BAD_REQUEST, f"{reason}: send less at once")

    def _with_body(self, command: Request | Dropped, body: bytes) -> Request:
        assert isinstance(command, (Put, MultiPut, Sync))
        force_setattr(command, "body", body)  # nobody has seen it yet
        return command


class ResponseDecoder(_Decoder[Response]):
    """A client's decoder."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(parse_response_line, limits or Limits())

    def _with_body(self, command: Response, body: bytes) -> Response:
        if isinstance(command, Result):
            command.message = body
        else:
            command.body = body
        return command
