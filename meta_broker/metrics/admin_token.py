"""The token that the admin port asks for, renewed while the broker runs."""

import hashlib
import hmac
import logging

from meta_broker.config.security_sections import AdminSection
from meta_client.errors import InvalidSecurity

log = logging.getLogger(__name__)


class AdminToken:
    """Checks what requests say in `Authorization`. Any thread may ask."""

    def __init__(self, section: AdminSection) -> None:
        """Read the file that *section* names. Raises InvalidSecurity."""
        self._token = section.token()

    def renew(self, section: AdminSection) -> None:
        """Read the file again; log it, and change nothing, if it can't be used."""
        try:
            self._token = section.token()
        except InvalidSecurity as error:
            log.error("token of the admin port not renewed, the former one stays error=%s", error)

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this header may see more than whether the broker is alive and ready."""
        if self._token is None:
            return True
        scheme, _, text = authorization.partition(" ")
        said, wanted = (hashlib.sha256(each.encode(errors="replace")).digest() for each in (text, self._token))
        return hmac.compare_digest(said, wanted) and scheme.lower() == "bearer"
