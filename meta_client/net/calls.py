"""Wait for the reply to a request and check it; check which broker a connection leads to."""

from typing import TypeVar

from meta_client.errors import NotConnected
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.protocol.errors import RemoteProtocolError, raise_for
from meta_client.protocol.responses import Data, Response, Result, Value
from meta_client.protocol.version import Capabilities

T = TypeVar("T", bound=Transport)


def checked_broker(connection: T, capabilities: Capabilities, broker_id: int) -> T:
    """Return *connection* if it leads to *broker_id*, as far as its *capabilities* tell. A broker that died is
    registered until its session ends, and another one may have its address meanwhile. Raises NotConnected."""
    found = capabilities.broker_id
    if found not in (None, broker_id):
        raise NotConnected(
            f"broker {found} answers at {connection.url}, where broker {broker_id} is registered: start that one, or "
            "wait until its session has ended"
        )
    return connection


def checked_result(response: Response, what: str) -> Result:
    """Return *response* as a successful result. *what* names the request in errors. Raises RemoteError,
    RemoteProtocolError."""
    if not isinstance(response, Result):
        raise RemoteProtocolError(f"{what}: answered with messages instead of a result")
    raise_for(response, what)
    return response


def checked_value(response: Response, what: str) -> Value:
    """Return *response* as a value. Raises RemoteError (any status but 200), RemoteProtocolError."""
    if isinstance(response, Value):
        return response
    raise _not_messages(response, what)


def checked_data(response: Response, what: str) -> Data:
    """Return *response* as data. Raises as checked_value."""
    if isinstance(response, Data):
        return response
    raise _not_messages(response, what)


def _not_messages(response: Response, what: str) -> RemoteProtocolError:
    if not isinstance(response, Result):
        return RemoteProtocolError(f"{what}: answered with messages in another form than asked for")
    raise_for(response, what)
    return RemoteProtocolError(f"{what}: answered with a result instead of messages")


def wait_result(reply: PendingReply, timeout_s: float, what: str) -> Result:
    """Wait for *reply* and return it as checked_result does. Raises ReplyTimeout and ConnectionLost too."""
    return checked_result(reply.wait(timeout_s), what)
