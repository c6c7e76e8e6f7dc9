"""The broker's version and protocol extensions. Stands alone: each new wire verb adds a line here."""

from importlib.metadata import version

from meta_client.protocol.version import version_text

PRODUCT_VERSION = version("metaq-broker")
# Described in PROTOCOL.md.
EXTENSIONS = (
    "mput",
    "fetch",
    "topic",
    "compression",
    "offsets",
    "status",
    "find",
    "branch",
    "checkpoint",
    "owner",
    "replicate",
    "ledger",
    "count",
    "reset",
)
VERSION_TEXT = version_text(PRODUCT_VERSION, EXTENSIONS)


def version_answer(broker_id: int, *, has_logins: bool) -> str:
    """Return the answer to `version`; with access rules a broker knows logins, too."""
    return version_text(PRODUCT_VERSION, (*EXTENSIONS, "auth") if has_logins else EXTENSIONS, broker_id)
