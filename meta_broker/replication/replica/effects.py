"""Effects: what a slave's events make it do. `replica` decides on them, `receiver` carries them out. Pure."""

from typing import NamedTuple

import msgspec

from journal.records.header import Lsn
from meta_broker.errors import BrokerError
from meta_broker.replication.replica.slave_file import SlaveFacts


class Resync(msgspec.Struct, frozen=True):
    """A change of the closed directory: a new start at *lsn* with *checkpoint* (blank: none), or a truncation."""

    lsn: Lsn
    reason: str
    checkpoint: bytes | None = None


class Dial(NamedTuple):
    """Look the master up and connect to it, after a pause of about *pause_s*."""

    pause_s: float


class Send(NamedTuple):
    """Send *data* to the master."""

    data: bytes


class ReadProof(NamedTuple):
    """Read the *size* bytes before *lsn*, beside the loop; their checksum is the event `proof_read`."""

    lsn: Lsn
    size: int


class SendTail(NamedTuple):
    """Send the journal's bytes [lsn, end), once they are fsynced: the master lost them."""

    lsn: Lsn
    end: Lsn


class Append(NamedTuple):
    """Append *data* to the copy, and publish its records as they are acknowledged."""

    lsn: Lsn
    data: bytes | memoryview


class Show(NamedTuple):
    """Show readers everything below *high_watermark*: the master has acknowledged it."""

    high_watermark: Lsn


class Save(NamedTuple):
    """Write slave.json."""

    facts: SlaveFacts


class Close(NamedTuple):
    """Close the connection at once, if there is one."""


class End(NamedTuple):
    """End the opening of this directory, to change it, or with an error."""

    why: Resync | BrokerError


Effect = Dial | Send | ReadProof | SendTail | Append | Show | Save | Close | End
