"""SCRAM-SHA-256 as the broker speaks it: verifiers instead of passwords, one login. Pure, except for random numbers.

A verifier tells whether a peer knows the password, and proves to the peer that the broker holds it; who steals it can
play the broker, and guess passwords at leisure, but not log in. A user that does not exist is answered like any other.
"""

import base64
import binascii
import hashlib
import secrets
from typing import Final, NamedTuple, Self

from scramp import ScramException, ScramMechanism

from meta_client.protocol.scram import ITERATIONS_MAX, MECHANISM

ITERATIONS: Final = 16_384  # some ten milliseconds of a client at each connection
_ITERATIONS_MIN: Final = 4_096  # of RFC 7677
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_KIND_BYTES: Final = 8  # choose which user a made-up one is like


class Verifier(NamedTuple):
    """The numbers that stand for a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, iterations: int = ITERATIONS) -> Self:
        """Make a verifier with a new salt. Raises ValueError for a password that SCRAM does not allow."""
        try:
            salt, stored_key, server_key, count = ScramMechanism(MECHANISM).make_auth_info(
                password, iterations, secrets.token_bytes(_SALT_BYTES)
            )
        except ScramException as error:
            raise ValueError(f"that password can't be used: {error}") from error
        return cls(count, salt, stored_key, server_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of `metaq access add`. Raises ValueError, which does not quote it."""
        match text.split("$"):
            case [name, count, *keys] if name == MECHANISM and len(keys) == 3 and count.isascii() and count.isdigit():
                try:
                    salt, stored_key, server_key = (base64.b64decode(key, validate=True) for key in keys)
                except binascii.Error:
                    raise ValueError(_WRONG) from None
                sizes = (len(stored_key), len(server_key))
                if len(salt) >= 12 and sizes == (_KEY_BYTES, _KEY_BYTES) and len(count) <= 7:
                    if not _ITERATIONS_MIN <= int(count) <= ITERATIONS_MAX:
                        raise ValueError(f"{_ITERATIONS_MIN} to {ITERATIONS_MAX} iterations are allowed")
                    return cls(int(count), salt, stored_key, server_key)
        raise ValueError(_WRONG)

    def __str__(self) -> str:
        keys = (base64.b64encode(key).decode() for key in (self.salt, self.stored_key, self.server_key))
        return "$".join((MECHANISM, str(self.iterations), *keys))

    def __repr__(self) -> str:
        return "Verifier(...)"


_WRONG: Final = f"it is no verifier: `metaq access add` prints one, {MECHANISM}$<iterations>$<salt>$<key>$<key>"


class Verifiers:
    """The verifiers of all users, and made-up ones of all others. Immutable."""

    def __init__(self, known: dict[str, Verifier], secret: bytes) -> None:
        """*secret* makes up verifiers: as long as it stays, a user that does not exist has the same salt each time."""
        self._known = known
        self._secret = secret
        kinds = [(each.iterations, len(each.salt)) for _, each in sorted(known.items())]
        self._kinds = kinds or [(ITERATIONS, _SALT_BYTES)]

    def find(self, user: str) -> Verifier:
        """Return the verifier of *user*; of one that does not exist, one that no password fits."""
        made = hashlib.shake_256(self._secret + user.encode()).digest(
            _KIND_BYTES + max(size for _, size in self._kinds)
        )
        iterations, size = self._kinds[int.from_bytes(made[:_KIND_BYTES]) % len(self._kinds)]
        salt = made[_KIND_BYTES:][:size]
        made_up = Verifier(iterations, salt, secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_KEY_BYTES))
        return self._known.get(user, made_up)

    def has(self, user: str) -> bool:
        return user in self._known


class LoginRefused(Exception):
    """The login failed, for a reason that the peer is not told."""


class Login:
    """One login of one connection: two messages, each with its answer."""

    def __init__(self, verifiers: Verifiers, nonce: str | None = None) -> None:
        """*nonce* is for tests."""
        self.user = ""  # as the peer says; it has proven it once `is_done`
        self.is_done = False
        self._verifiers = verifiers
        self._server = ScramMechanism(MECHANISM).make_server(self._look_up, s_nonce=nonce)
        self._is_first = True

    def answer(self, message: bytes) -> bytes:
        """Return the answer to the next message. Raises LoginRefused, and nothing else, whatever the bytes."""
        if self.is_done:
            raise LoginRefused("the login is over")
        try:
            text = message.decode()
            if self._is_first:
                self._is_first = False
                self._server.set_client_first(text)
                answer: str = self._server.get_server_first()
            else:
                self._server.set_client_final(text)
                answer = self._server.get_server_final()
                if not self._verifiers.has(self.user):
                    raise LoginRefused("no such user")
                self.is_done = True
            return answer.encode()
        except LoginRefused:
            raise
        except Exception as error:  # scramp's own, and whatever else its parsers raise for a stranger's bytes
            raise LoginRefused(str(error)) from error

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        found = self._verifiers.find(user)
        return found.salt, found.stored_key, found.server_key, found.iterations
