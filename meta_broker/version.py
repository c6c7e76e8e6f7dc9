"""What this broker says it is."""

from importlib.metadata import version

from meta_client.protocol.version import version_text

PRODUCT_VERSION = version("metaq-broker")
# PROTOCOL.md draws each.
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
)
VERSION_TEXT = version_text(PRODUCT_VERSION, EXTENSIONS)
