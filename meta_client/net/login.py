"""Log in on a new connection, before anything else is said on it."""

from meta_client.errors import ConnectionLost, LoginFailed, NotConnected, ReplyTimeout
from meta_client.net.calls import wait_result
from meta_client.net.deadline import Deadline
from meta_client.net.opaques import next_opaque
from meta_client.net.security import Credentials
from meta_client.net.transport import Transport
from meta_client.protocol.errors import MetaError, NotAuthenticated
from meta_client.protocol.requests import Authenticate
from meta_client.protocol.scram import EXTENSION, MECHANISM, login


def log_in(connection: Transport, credentials: Credentials, timeout_s: float) -> None:
    """Prove the two sides of *connection* to each other.

    Raises LoginFailed if one of them does not know the password, NotConnected if the connection broke meanwhile: close
    the connection.
    """
    deadline = Deadline(timeout_s)
    try:
        if EXTENSION not in connection.capabilities(timeout_s).extensions:
            raise LoginFailed(
                f"{connection.url} knows no logins, and this client has credentials: give it [access], or this client "
                "none"
            )
        exchange = login(credentials.user, credentials.password)
        message = next(exchange)
        while True:
            reply = connection.submit(Authenticate(MECHANISM, message, next_opaque()))
            result = wait_result(reply, deadline.remaining_s(), f"login of {credentials.user} at {connection.url}")
            try:
                message = exchange.send(result.message)
            except StopIteration:
                return
    except NotAuthenticated as error:
        raise LoginFailed(f"{connection.url} refused the login of {credentials.user}: {error.text}") from error
    except LoginFailed:
        raise
    except (ConnectionLost, ReplyTimeout) as error:
        raise NotConnected(f"no login at {connection.url}: {error}") from error
    except MetaError as error:
        raise LoginFailed(f"no login of {credentials.user} at {connection.url}: {error}") from error
