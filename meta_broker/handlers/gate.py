"""Lets requests through to their handlers if the connection's principal is known and has the rights."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from meta_broker.access.attempts import FailedLogins
from meta_broker.access.needs import KINDS, Need
from meta_broker.access.principal import Principal
from meta_broker.access.repeats import FreeActions, RepeatedLines
from meta_broker.access.rules import Principals
from meta_broker.access.scram import Login, LoginRefused
from meta_broker.handlers.audited import action_of
from meta_broker.handlers.context import Peer
from meta_client.logs.audit import audit
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import (
    OPAQUE_ABSENT,
    Authenticate,
    BranchCommand,
    BranchVerb,
    ResetGroup,
    TransactionCommand,
    TransactionVerb,
)
from meta_client.protocol.scram import MECHANISM
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

LOGIN_S_MAX: Final = 10.0  # from a connection to its login; then it is closed
DECISIONS_MAX: Final = 10_000  # remembered
NAME_MAX: Final = 255  # characters of a name whose decision is remembered: longer ones are made up
_WHO_ARE_YOU: Final = b"log in first: this broker serves only principals that it knows"
_TOO_MANY: Final = b"too many of these in a minute for the audit log: try again later"
_FINDINGS: Final = frozenset({BranchVerb.MIXED, BranchVerb.HAZARD})
_REFUSED: Final = b"wrong user or password"  # the same for every reason


class Gate:
    """Logins and rights of one broker. Loop thread only."""

    def __init__(self, rules: Principals) -> None:
        self.rules = rules
        self._failed = FailedLogins()
        self._decided: dict[tuple[str, Need], bool] = {}
        self._denied = RepeatedLines()
        self._logins = RepeatedLines()
        self._free = FreeActions()
        self._links: list[tuple[Peer, asyncio.Transport]] = []  # connections that are no clients any more

    def renew(self, rules: Principals) -> None:
        """Use *rules* from now on; links of principals that changed end. The server ends their connections."""
        self.rules = rules
        self._decided.clear()
        for peer, transport in self._links:
            if self.has_changed(peer):
                log.warning("link closed conn=%s reason=the rights of its principal have changed", peer.name)
                transport.abort()
        self._links = [link for link in self._links if not link[1].is_closing()]

    def has_changed(self, peer: Peer) -> bool:
        """Return whether by the rules *peer* is not what it is: its principal has changed, or a former one, whose long
        polls go on; or its certificate or address is that of another one."""
        if (principal := peer.principal) is None:
            return False
        same = peer.has_logged_in or self.identify(peer.address, peer.certificate) == principal
        known = self.rules.principals
        return not same or any(known.get(each.name) != each for each in (principal, *peer.former))

    def keep_link(self, peer: Peer, transport: asyncio.Transport) -> None:
        """Take note of *peer*, which was handed to a replication link."""
        self._links = [link for link in self._links if not link[1].is_closing()]
        self._links.append((peer, transport))

    def identify(self, address: str, certificate: tuple[str, ...]) -> Principal | None:
        """Return the principal of a new connection, by the names in its verified certificate, or by its address."""
        found = self.rules.of_certificate(certificate) if certificate else None
        return found or self.rules.of_address(address)

    def guarded(self, kind: type, handle: Callable[[Any, Peer], None]) -> Callable[[Any, Peer], None]:
        """Wrap the handler of requests of *kind*: without the rights they are refused, unhandled."""
        needs_of = KINDS[kind].needs
        if needs_of is None:  # open to everybody
            return handle

        def handle_if_allowed(request: Any, peer: Peer) -> None:
            if (principal := peer.principal) is None:
                _refuse(request, peer, Status.NOT_AUTHENTICATED, _WHO_ARE_YOU)
                return
            for need in needs_of(request):
                if not self._is_met(principal, need):
                    self._deny(request, peer, principal, need)
                    return
            if _is_free(request) and not self._free.admit(principal.name, time.monotonic()):
                _refuse(request, peer, Status.TOO_MANY, _TOO_MANY)
                return
            handle(request, peer)

        return handle_if_allowed

    def authenticate(self, request: Authenticate, peer: Peer) -> None:
        if request.mechanism != MECHANISM:
            text = f"this broker knows {MECHANISM} alone".encode()
            peer.send(encode_result(Status.NOT_AUTHENTICATED, text, request.opaque))
            return
        now = time.monotonic()
        if peer.login is None:
            peer.login = Login(self.rules.verifiers)
        try:
            answer = peer.login.answer(request.message)
            why = None
        except LoginRefused as error:
            answer, why = b"", str(error)
        if wait_s := self._failed.wait_s(peer.network, peer.login.user, now):
            peer.login = None
            text = f"too many logins of this address have failed: try again in {wait_s:.0f} s".encode()
            peer.send(encode_result(Status.TOO_MANY, text, request.opaque))
            return
        if why is not None:
            self._failed.failed(peer.network, peer.login.user, now)
            audit("login", None, peer.name, "refused", user=peer.login.user, reason=why)
            peer.send(encode_result(Status.NOT_AUTHENTICATED, _REFUSED, request.opaque))
            peer.quit()
            return
        if peer.login.is_done:
            principal = self.rules.principals.get(peer.login.user)
            peer.login = None
            if principal is None or principal.verifier is None:  # it left the rules meanwhile
                peer.send(encode_result(Status.NOT_AUTHENTICATED, _REFUSED, request.opaque))
                peer.quit()
                return
            self._failed.succeeded(peer.network, principal.name)
            if full := peer.become(principal):
                self._tell_login(principal, peer, "refused", full)
                peer.send(encode_result(Status.TOO_MANY, full.encode(), OPAQUE_ABSENT))  # as any connection too many
                peer.quit()
                return
            self._tell_login(principal, peer, "done")
        peer.send(encode_result(Status.SUCCESS, answer, request.opaque))

    def _tell_login(self, principal: Principal, peer: Peer, outcome: str, reason: str | None = None) -> None:
        if (left_out := self._logins.admit(principal.name, (peer.name, outcome), time.monotonic())) is not None:
            audit("login", principal.name, peer.name, outcome, reason=reason, left_out=left_out or None)

    def _is_met(self, principal: Principal, need: Need) -> bool:
        if need.name is not None and len(need.name) > NAME_MAX:
            return need.is_met_by(principal)
        try:
            return self._decided[principal.name, need]
        except KeyError:
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            is_met = self._decided[principal.name, need] = need.is_met_by(principal)
            return is_met

    def _deny(self, request: Any, peer: Peer, principal: Principal, need: Need) -> None:
        action, facts = action_of(request) or (type(request).__name__.lower(), {})
        if (left_out := self._denied.admit(principal.name, (action, need), time.monotonic())) is not None:
            audit(action, principal.name, peer.name, "denied", needs=need, left_out=left_out or None, **facts)
        _refuse(request, peer, Status.NOT_AUTHORISED, f"{principal.name} may not {need}: it has no such right".encode())


def _is_free(request: Any) -> bool:
    return isinstance(request, ResetGroup) or (isinstance(request, BranchCommand) and request.verb in _FINDINGS)


def _refuse(request: Any, peer: Peer, status: Status, text: bytes) -> None:
    if isinstance(request, TransactionCommand) and request.verb is TransactionVerb.END:
        peer.end_in_flight()  # END has no answer
    else:
        peer.send(encode_result(status, text, request.opaque))
