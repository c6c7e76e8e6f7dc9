"""A record's meta part: `encode` and `decode`. Pure. encoders.py and decoders.py have each kind; see FORMAT.md."""

import struct
from typing import get_args

from journal.errors import InvalidRecord
from journal.records.decoders import DECODERS
from journal.records.encoders import ENCODERS
from journal.records.header import RecordHeader, RecordType, record_type_name
from journal.records.record import Record


def encode(record: Record) -> tuple[RecordType, bytes]:
    """Return the kind and the meta part of *record*. Raises ValueError or struct.error for a record that `decode` would
    refuse."""
    record_type, write = ENCODERS[type(record)]
    return record_type, write(record)


def decode(header: RecordHeader, meta: memoryview) -> Record:
    """Decode a record whose header was checked. Raises InvalidRecord for an invalid meta part."""
    if (read := DECODERS.get(header.record_type)) is None:
        raise InvalidRecord(
            f"LSN {header.lsn}: a record of kind {record_type_name(header.record_type)}, which this version of metaq "
            f"does not read: open the journal with the version that wrote it"
        )
    try:
        return read(bytes(meta))
    except (struct.error, ValueError) as error:  # InvalidXid and UnicodeDecodeError are ValueErrors
        raise InvalidRecord(
            f"LSN {header.lsn}: a malformed {record_type_name(header.record_type)} record: {error}"
        ) from error


assert ENCODERS.keys() == set(get_args(Record)), "every kind of record is written"
assert DECODERS.keys() == {record_type for record_type, _ in ENCODERS.values()}, "and read back"
