"""Input formats of `metaq produce`: lines, comma-separated values, JSON, whole files. Pure, except for reading.

Every message and every error carries its file and line. Only the current message is in memory, and its size is bounded.
"""

import base64
import binascii
import csv
import itertools
from collections.abc import Callable, Iterator
from typing import IO, Final, NamedTuple

import msgspec

from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import DATA_BYTES_MAX

LINE_BYTES_MAX: Final = 2 * DATA_BYTES_MAX  # of a JSON line with a base64 payload


class BadInput(MetaError):
    """Part of the input can't be a message. Everything before it was sent."""


class Item(NamedTuple):
    """A message to send, with its origin."""

    payload: bytes
    attribute: str | None
    source: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.source}, line {self.line}"


ReadItems = Callable[[str, IO[bytes]], Iterator[Item]]  # of an input and its name; made of a function below


class _Envelope(msgspec.Struct):
    """A line printed by `metaq consume --json`; other fields are ignored."""

    payload: str | None = None
    payload_base64: str | None = None
    attribute: str | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_key = msgspec.json.Decoder(str | int)


def read_lines(source: str, stream: IO[bytes], attribute: str | None) -> Iterator[Item]:
    """Yield each line, without its end, as a message."""
    for number, line in _lines(source, stream, DATA_BYTES_MAX):
        yield Item(line, attribute, source, number)


def read_whole(source: str, stream: IO[bytes], attribute: str | None) -> Iterator[Item]:
    """Yield the whole input as one message."""
    payload = stream.read(DATA_BYTES_MAX + 1)
    if len(payload) > DATA_BYTES_MAX:
        raise BadInput(f"{source} is longer than {DATA_BYTES_MAX} bytes, the most a message may have")
    yield Item(payload, attribute, source, 1)


def read_envelopes(source: str, stream: IO[bytes], attribute: str | None) -> Iterator[Item]:
    """Yield the objects, one a line, with `payload` or `payload_base64`, and optionally `attribute`."""
    for number, line in _lines(source, stream, LINE_BYTES_MAX):
        try:
            found = _envelope.decode(line)
            if (found.payload is None) is (found.payload_base64 is None):
                raise ValueError("it needs one of payload and payload_base64")
            payload = (found.payload or "").encode()
            if found.payload_base64 is not None:
                payload = base64.b64decode(found.payload_base64, validate=True)
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as error:
            raise BadInput(f"{source}, line {number} is not what `metaq consume --json` prints ({error})") from error
        yield Item(payload, found.attribute if attribute is None else attribute, source, number)


def read_objects(source: str, stream: IO[bytes], field: str) -> Iterator[Item]:
    """Yield each line, a JSON object, unchanged as a message; its *field* is the attribute."""
    for number, line in _lines(source, stream, DATA_BYTES_MAX):
        try:
            found = _object.decode(line)
            if field not in found:
                raise ValueError(f"it has no {field}")
            attribute = str(_key.decode(found[field]))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadInput(f"{source}, line {number} is no JSON object with a key in {field} ({error})") from error
        yield Item(line, attribute, source, number)


def read_records(source: str, stream: IO[bytes], key: str, *, has_header: bool) -> Iterator[Item]:
    """Yield each record of comma-separated values, unchanged, as a message; quoted values may span lines.

    *key*: the attribute's column, by number from 1, or by its name in the header.
    """
    csv.field_size_limit(DATA_BYTES_MAX)
    records = _records(source, stream)
    index = int(key) - 1 if key.isdecimal() else None
    if has_header or index is None:
        if (header := next(records, None)) is None:
            return
        if index is None:
            if key not in header.columns:
                raise BadInput(f"{source}, line 1: no column is named {key}: {', '.join(header.columns)}")
            index = header.columns.index(key)
    for record in records:
        if len(record.columns) <= index:
            text = f"has {len(record.columns)} columns, --key-column is {key}"
            raise BadInput(f"{source}, line {record.line} {text}")
        yield Item(record.text, record.columns[index], source, record.line)


class _Record(NamedTuple):
    text: bytes
    columns: list[str]
    line: int


def _records(source: str, stream: IO[bytes]) -> Iterator[_Record]:
    """Yield records unchanged, without the last line's end, with their columns. Skips blank lines."""
    taken: list[bytes] = []  # the raw lines of the current record
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in iter(lambda: stream.readline(DATA_BYTES_MAX + 3), b""):
            size += len(line)
            taken.append(line)
            if size > DATA_BYTES_MAX + 2:
                raise ValueError(f"it is longer than {DATA_BYTES_MAX} bytes: a quote is not closed?")
            yield line.decode()

    reader = csv.reader(lines(), strict=True)
    number = 1
    while True:
        taken.clear()
        size = 0
        try:
            columns = next(reader)
        except StopIteration:
            return
        except (ValueError, csv.Error) as error:  # UnicodeDecodeError, too
            raise BadInput(f"{source}, line {number} is not comma-separated UTF-8 ({error})") from error
        if columns:
            yield _Record(_bare(b"".join(taken)), columns, number)
        number += len(taken)


def _lines(source: str, stream: IO[bytes], bytes_max: int) -> Iterator[tuple[int, bytes]]:
    for number in itertools.count(1):
        line = stream.readline(bytes_max + 3)
        if not line:
            return
        if len(bare := _bare(line)) > bytes_max:
            raise BadInput(f"{source}, line {number} is longer than {bytes_max} bytes, the most a message may have")
        yield number, bare


def _bare(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
