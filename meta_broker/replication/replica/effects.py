"""Effects: what a slave's events make it do. `replica` decides on them, `receiver` carries them out. Pure.

Structs: tuples of alike fields would be equal to one another.
"""

import msgspec

from journal.records.header import Lsn
from meta_broker.errors import BrokerError
from meta_broker.replication.replica.slave_file import SlaveFacts


class Resync(msgspec.Struct, frozen=True):
    """A change of the closed directory: a new start at *lsn* with *checkpoint* (blank: none), or a truncation."""

    lsn: Lsn
    reason: str
    checkpoint: bytes | None = None


class Dial(msgspec.Struct, frozen=True):
    """Look the master up and connect to it, after a pause of about *pause_s*."""

    pause_s: float


class Send(msgspec.Struct, frozen=True):
    """Send *data* to the master."""

    data: bytes


class ReadProof(msgspec.Struct, frozen=True):
    """Read the *size* bytes before *lsn*, beside the loop; their checksum is the event `proof_read`."""

    lsn: Lsn
    size: int


class SendTail(msgspec.Struct, frozen=True):
    """Send the journal's bytes [lsn, end), once they are fsynced: the master lost them."""

    lsn: Lsn
    end: Lsn


class Append(msgspec.Struct, frozen=True):
    """Append *data* to the copy, and publish its records as they are acknowledged."""

    lsn: Lsn
    data: bytes | memoryview


class Show(msgspec.Struct, frozen=True):
    """Show readers everything below *high_watermark*: the master has acknowledged it."""

    high_watermark: Lsn


class Save(msgspec.Struct, frozen=True):
    """Write slave.json."""

    facts: SlaveFacts


class Close(msgspec.Struct, frozen=True):
    """Close the connection at once, if there is one."""


class End(msgspec.Struct, frozen=True):
    """End the opening of this directory, to change it, or with an error."""

    why: Resync | BrokerError


Effect = Dial | Send | ReadProof | SendTail | Append | Show | Save | Close | End
