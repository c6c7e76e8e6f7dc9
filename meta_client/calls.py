"""One request, one result: the answer awaited and checked."""

from meta_client.connection import PendingReply
from meta_client.protocol.errors import RemoteProtocolError, raise_for
from meta_client.protocol.responses import Response, Result, Value


def checked_result(response: Response, what: str) -> Result:
    """The 200 that *response* is. *what* was asked, for messages. Raises RemoteError, RemoteProtocolError."""
    if not isinstance(response, Result):
        raise RemoteProtocolError(f"{what}: answered with messages instead of a result")
    raise_for(response, what)
    return response


def checked_value(response: Response, what: str) -> Value:
    """The value that *response* is. Raises RemoteError (any status but 200), RemoteProtocolError."""
    if isinstance(response, Value):
        return response
    raise_for(response, what)
    raise RemoteProtocolError(f"{what}: answered with a result instead of messages")


def wait_result(reply: PendingReply, timeout_s: float, what: str) -> Result:
    """As checked_result, once it is here. Raises ReplyTimeout and ConnectionLost, too."""
    return checked_result(reply.wait(timeout_s), what)
