"""`backup.json`: the content of a back-up, with a checksum for each file and one for itself. Pure."""

import re
from typing import Annotated, Final

import msgspec

from journal.checksum import crc32
from journal.errors import InvalidContent
from journal.records.header import Natural
from journal.wal.segments import JournalIdentity

FORMAT: Final = 1
FILES_MAX: Final = 1_000_000
# No other name goes into a path that is read or written.
FILE_NAME: Final = re.compile(r"\d{20}\.journal|checkpoint\.\d{1,18}", re.ASCII)

_TEXT_MAX: Final = 4096
_Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class BackupFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a back-up."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    bytes: Natural
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A back-up of LSNs [start, end), taken at *time_ms*, milliseconds since 1970, from the directory *source*.

    *epoch*, *incarnation*: of the last writer. *last_ms*: the latest time of a record. *in_doubt*: prepared branches.
    """

    format: Natural
    version: _Text
    cluster: _Text
    broker_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    source: _Text
    time_ms: Natural
    last_ms: Natural
    start: Natural
    end: Natural
    epoch: Natural
    incarnation: Natural
    records: Natural
    in_doubt: Natural
    files: Annotated[tuple[BackupFile, ...], msgspec.Meta(max_length=FILES_MAX)]

    @property
    def identity(self) -> JournalIdentity:
        return JournalIdentity(self.cluster, self.broker_id)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def text_of(path: str) -> str:
    """Return a path as a manifest names it: not all are UTF-8."""
    return path.encode(errors="backslashreplace").decode()[:_TEXT_MAX]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file's content: a checksum, and the manifest as one line of JSON."""
    text = msgspec.json.encode(manifest)
    return b"%08x\n%b\n" % (crc32(text), text)


def decode_manifest(raw: bytes) -> Manifest:
    """Decode a manifest. Raises InvalidContent."""
    crc, _, text = raw.removesuffix(b"\n").partition(b"\n")
    if crc != b"%08x" % crc32(text):
        raise InvalidContent("its checksum is wrong")
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise InvalidContent(str(error)) from error
    if manifest.format != FORMAT:
        raise InvalidContent(f"format {manifest.format}, this metaq reads {FORMAT}")
    for file in manifest.files:
        if not FILE_NAME.fullmatch(file.name):
            raise InvalidContent(f"{file.name!r} is no file of a journal")
    return manifest
