"""Spark over the journal: a data source that reads segments, and the audit that proves nothing lost, nothing doubled.

Read: source: schemas (a record as a row), directory (which file holds which bytes), segment_reader (records and
unreadable ranges of one segment), rows (record to row), filters (what Spark pushes down), data_source, session (a local
Spark) -> audit: findings (a check's rows), checksums, offset_check, transaction_check, checkpoint_check (pure DataFrame
transforms, gathered in transforms), checkpoint_files -> report (the answer), audit (runs all) -> cli: `metaq audit`.

Reads only and takes no lock: the directory may be that of a running broker, of a stopped one, or an archive.
"""
