"""SCRAM-SHA-256 (RFC 5802, 7677) as the client speaks it: messages in, messages out. Pure.

It proves the client to the broker and the broker to the client; neither sends the password, nor what would do instead.
Of libraries: scramp. The broker's side is in meta_broker/access/.
"""

from collections.abc import Generator
from typing import Final

from meta_client.protocol.errors import RemoteProtocolError

MECHANISM: Final = "SCRAM-SHA-256"
EXTENSION: Final = "auth"
ITERATIONS_MAX: Final = 200_000  # a tenth of a second; a hostile broker could ask for hours


class BrokerNotProven(RemoteProtocolError):
    """The peer did not prove that it knows this user's password: nothing may be said to it. Check its address."""


def login(user: str, password: str, nonce: str | None = None) -> Generator[bytes, bytes, None]:
    """Yield each message for the broker; take its answer. Ends once the broker is proven.

    *nonce* is for tests. Raises BrokerNotProven for an answer that is none of a broker that knows the user.
    """
    from scramp import ScramClient, ScramException  # only who logs in needs it

    try:
        client = ScramClient([MECHANISM], user, password, c_nonce=nonce)
        answer = yield client.get_client_first().encode()
        client.set_server_first(_text(answer))
        if int(client.iterations) > ITERATIONS_MAX:
            raise BrokerNotProven(f"it asks for {int(client.iterations)} iterations, {ITERATIONS_MAX} are the most")
        answer = yield client.get_client_final().encode()
        client.set_server_final(_text(answer))
    except ScramException as error:
        raise BrokerNotProven(f"its answer to the login is wrong: {error}") from error


def _text(answer: bytes) -> str:
    try:
        return answer.decode()
    except UnicodeDecodeError as error:
        raise BrokerNotProven("its answer to the login is not UTF-8") from error
