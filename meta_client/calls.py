"""One request, one result: the answer awaited and checked."""

from meta_client.pending_reply import PendingReply
from meta_client.protocol.errors import RemoteProtocolError, raise_for
from meta_client.protocol.responses import Data, Response, Result, Value


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
    raise _not_messages(response, what)


def checked_data(response: Response, what: str) -> Data:
    """The data that *response* is. Raises as checked_value."""
    if isinstance(response, Data):
        return response
    raise _not_messages(response, what)


def _not_messages(response: Response, what: str) -> RemoteProtocolError:
    if not isinstance(response, Result):
        return RemoteProtocolError(f"{what}: answered with messages in another form than asked for")
    raise_for(response, what)
    return RemoteProtocolError(f"{what}: answered with a result instead of messages")


def wait_result(reply: PendingReply, timeout_s: float, what: str) -> Result:
    """As checked_result, once it is here. Raises ReplyTimeout and ConnectionLost, too."""
    return checked_result(reply.wait(timeout_s), what)
