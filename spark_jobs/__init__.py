"""Spark and metaq: records and messages as rows, rows as messages, and the audit that proves nothing lost or doubled.

Read: source: schemas (a record as a row), directory (which file holds which bytes), record_block (clean records by
columns), segment_reader (records and unreadable ranges of one segment), rows (record to row), filters (what Spark
pushes down), data_source, worker_rows, cluster (is there one?), session (a Spark for one command) -> audit: findings (a
check's rows), the checks (checksums, *_check; pure DataFrame transforms), checkpoint_files, index_files, range_check ->
report (the answer), audit (runs all) -> certificate (a database and journals, joined and signed), reconciliation (what
a restore has pulled apart) -> cli: `metaq audit`, `metaq certify`, `metaq reconcile`.

messages: columns, frames (where messages stand), batches (messages as Arrow), names, segments, published (what
a segment publishes), selection, journal (reads directories) -> options, cluster, fetching (reads brokers),
planning, stream, journal_positions, journal_stream (of directories) -> sink: options, batch_plan (what Spark planned),
commit (carries out what meta_client/batches decides), writers -> formats: what Spark finds by name.

Directories are only read, without a lock: that of a running broker, of a stopped one, or an archive.
"""
