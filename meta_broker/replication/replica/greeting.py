"""A slave's first words to its master: VERSION, a login and REPLICATE in lines of the wire, a handshake. Pure."""

from collections.abc import Generator

from journal.records.header import Lsn
from meta_broker.replication.link_protocol import VERSION, EpochNumbers, Handshake, LinkRefused
from meta_broker.replication.replica.replica_state import E
from meta_broker.replication.replica.slave_file import SlaveFacts
from meta_broker.version import PRODUCT_VERSION
from meta_client.net.security import Credentials
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Authenticate, Replicate, Request, Version
from meta_client.protocol.responses import Result
from meta_client.protocol.scram import EXTENSION, MECHANISM, BrokerNotProven, login
from meta_client.protocol.version import Capabilities


class Greeting:
    """The greeting of one link. With *credentials* each side proves itself to the other before REPLICATE is said."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._login: Generator[bytes, bytes, None] | None = None  # once it has begun

    def first(self) -> bytes:
        """Return what the slave says first."""
        return _encoded(Version(1))

    def answered(self, answer: Result) -> tuple[E, bytes]:
        """Return the event that a successful *answer* is, and what the slave says next. Raises LinkRefused."""
        if self._login is not None:
            return self._log_in(answer.message)
        extensions = Capabilities.parse(answer.message).extensions
        if "replicate" not in extensions:
            raise LinkRefused(f"it does not replicate, it says {answer.text[:100]!r}")
        if self._credentials is None:
            return E.ANSWER, _encoded(Replicate(2))
        if EXTENSION not in extensions:
            raise LinkRefused(
                "it knows no logins, and this slave has credentials: it is another one, or lacks [access]"
            )
        self._login = login(self._credentials.user, self._credentials.password)
        return E.LOG_IN, _encoded(Authenticate(MECHANISM, next(self._login), 2))

    def _log_in(self, answer: bytes) -> tuple[E, bytes]:
        assert self._login is not None
        try:
            return E.LOG_IN, _encoded(Authenticate(MECHANISM, self._login.send(answer), 2))
        except StopIteration:  # each has proven itself
            return E.ANSWER, _encoded(Replicate(2))
        except BrokerNotProven as error:
            raise LinkRefused(f"it did not prove that it knows this slave: {error}") from error


def handshake(
    facts: SlaveFacts,
    epoch_history: tuple[EpochNumbers, ...],
    start: Lsn,
    end: Lsn,
    *,
    serves: bool,
    cluster_id: str | None,
) -> Handshake:
    """Return the handshake of the slave of *facts*, whose journal is [*start*, *end*), of *epoch_history*."""
    return Handshake(
        version=VERSION,
        cluster=facts.cluster,
        broker_id=facts.broker_id,
        slave_id=facts.slave_id,
        epoch_history=epoch_history,
        start=start,
        end=end,
        serves=serves,
        product=PRODUCT_VERSION,
        cluster_id=cluster_id or "",
    )


def _encoded(request: Request) -> bytes:
    return b"".join(encode_request(request))
