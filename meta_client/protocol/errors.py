"""Errors between a client and a broker, one class for each reaction of a caller.

LocalProtocolError: fix the calling code. RemoteProtocolError: close the connection. InvalidMessage: skip the bytes or
report them. RemoteError: the broker refused; the subclass says what to do next.
"""

from typing import ClassVar

from meta_client.protocol.integers import int64
from meta_client.protocol.responses import FILTERED, Result
from meta_client.protocol.status import Status
from meta_client.protocol.xa import XaFailure, parse_xa_failure

_TEXT_CHARACTERS_MAX = 1000  # of a broker's text in a one-line error; `text` keeps all of it


class MetaError(Exception):
    """Base of every error that the client raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Let another process have it: without its constructor, which takes other arguments than its text."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class ProtocolError(MetaError):
    """A violation of the wire protocol; the subclass says by which side, and what to do."""


class LocalProtocolError(ProtocolError):
    """A value has no form on the wire. Nothing was sent; the connection is still good."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that can never be a command. The connection must be closed without an answer."""


class InvalidMessage(MetaError):
    """Stored bytes are no message: the frame at *offset* is broken. Continue after it, and check the broker's journal
    (`metaq journal check`).

    `next_offset` is the next frame's beginning if this one's length can be trusted, else None.
    """

    def __init__(self, offset: int, reason: str, next_offset: int | None = None) -> None:
        super().__init__(f"invalid message at offset {offset}: {reason}")
        self.offset = offset
        self.next_offset = next_offset


class CodecMissing(InvalidMessage):
    """A valid message compressed by a codec whose package is not installed here: install it and continue."""

    def __init__(self, offset: int, codec: str, package: str, next_offset: int) -> None:
        super().__init__(offset, "", next_offset)
        self.args = (
            f"the message at offset {offset} is compressed with {codec}, and the package {package} is not installed: "
            "pip install 'metaq-broker[compression]'",
        )


class RemoteError(MetaError):
    """The broker answered with a status other than 200: its text says why, the subclass what to do. Statuses without a
    subclass use this class."""

    by_status: ClassVar[dict[int, type["RemoteError"]]] = {}

    def __init_subclass__(cls, *, status: Status | None = None) -> None:
        if status is not None:
            cls.by_status[status] = cls

    def __init__(self, status: int, text: str, context: str) -> None:
        """*text* is the broker's; *context* names request and broker, as in "get orders/0-3 from meta://b:8123"."""
        super().__init__(f"{context}: status {status}: {printable_line(text) or 'the broker gave no reason'}")
        self.status = status
        self.text = text
        self.context = context


class BadRequest(RemoteError, status=Status.BAD_REQUEST):
    """The broker can't interpret the request: correct it before repeating."""


class NotAuthenticated(RemoteError, status=Status.NOT_AUTHENTICATED):
    """The broker wants to know who this is, or does not know these credentials: give the client the right ones."""


class NotAuthorised(RemoteError, status=Status.NOT_AUTHORISED):
    """The principal of this connection may not do that. The text names principal, right and thing: ask who grants it
    (`docs/operations/secure.md`)."""


class QuotaExceeded(RemoteError, status=Status.TOO_MANY):
    """More than the broker lets this principal or address do at a time. Nothing was done: send it again later."""


class Forbidden(RemoteError, status=Status.FORBIDDEN):
    """An operator closed the partition: use another one, or wait until it is opened."""


class NotFound(RemoteError, status=Status.NOT_FOUND):
    """The partition does not exist, or nothing is stored at this offset yet: ask again later."""


class Moved(RemoteError):
    """The offset is not stored (any more), or a filter skips what is there (*is_filtered*): get again from `offset`."""

    def __init__(self, status: int, text: str, context: str, offset: int, *, is_filtered: bool) -> None:
        super().__init__(status, text, context)
        self.offset = offset
        self.is_filtered = is_filtered


class BeyondEnd(RemoteError):
    """The master's partition ends at `end`, below the offset: messages in between are lost. Seek to a new position."""

    def __init__(self, status: int, text: str, context: str, end: int) -> None:
        super().__init__(status, text, context)
        self.end = end


class StaleOwner(RemoteError):
    """Another consumer of the group owns the partition now: release it, and rebalance.

    `epoch` is the highest one that the broker has seen there.
    """

    def __init__(self, status: int, text: str, context: str, epoch: int) -> None:
        super().__init__(status, text, context)
        self.epoch = epoch


class InternalError(RemoteError, status=Status.INTERNAL_ERROR):
    """The broker failed; the text says why. Look at its log for the rest."""


class Unavailable(RemoteError, status=Status.UNAVAILABLE):
    """The broker does not serve this command, or is too busy now: ask later, or ask another broker."""


class XaError(RemoteError):
    """A transaction command was refused with an XA code, which says what to do: after XAER_RMFAIL ask again; XA_RB...
    means that the branch is rolled back, XAER_NOTA that it does not exist, XA_HEUR... that an operator decided it.

    On the wire a 500 whose text has the `XAException:` form.
    """

    def __init__(self, status: int, text: str, context: str, failure: XaFailure) -> None:
        super().__init__(status, text, context)
        self.code = failure.code  # compares equal to the XaCode of that number, if there is one
        self.reason = failure.text


def raise_for(result: Result, context: str) -> None:
    """Return if *result* is a success, else raise the RemoteError that its status and text name.

    Raises RemoteProtocolError for a 301 or 416 without an offset, or a 409 without an epoch.
    """
    status, text = result.status, result.text
    if status == Status.SUCCESS:
        return
    if status == Status.MOVED:
        offset = _int64_of(result.message.removesuffix(FILTERED), "a 301 must name an offset", context)
        raise Moved(status, text, context, offset, is_filtered=result.message.endswith(FILTERED))
    if status == Status.STALE_OWNER:
        epoch = _int64_of(result.message.partition(b" ")[0], "a 409 must name an epoch", context)
        raise StaleOwner(status, text, context, epoch)
    if status == Status.BEYOND_END:
        raise BeyondEnd(status, text, context, _int64_of(result.message, "a 416 must name an offset", context))
    if status == Status.INTERNAL_ERROR and (failure := parse_xa_failure(text)) is not None:
        raise XaError(status, text, context, failure)
    raise RemoteError.by_status.get(status, RemoteError)(status, text, context)


def _int64_of(text: bytes, rule: str, context: str) -> int:
    try:
        return int64(text)
    except ValueError as error:
        raise RemoteProtocolError(f"{context}: {rule}: {error}") from error


def printable_line(text: str) -> str:
    """Return the untrusted *text* shortened, without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_TEXT_CHARACTERS_MAX]).strip()


def one_line(error: BaseException) -> str:
    """Return the text of an error without line breaks, as of a driver's; its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
