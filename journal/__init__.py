"""The log that is the store: one write-ahead journal per broker, with its transactions. Bytes: FORMAT.md.

Read: errors, checksum -> records/ (header, codec, identifiers, states, value types; pure) -> wal/ (storage is the seam
to the OS; segments, scan, log_writer, journal, high_watermark) -> state/ (fold, checkpoint, recovery,
truncation, transaction_store) -> replica/ (a slave's copy) and repair/ (check, damage, repair, offline) -> backup/
(copies of a live directory), archive/ (segments that retention took away).

Each folder imports only those before it. Imports no sibling package, and uses no socket and no event loop.
"""
