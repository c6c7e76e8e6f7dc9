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
)
VERSION_TEXT = version_text(PRODUCT_VERSION, EXTENSIONS)
