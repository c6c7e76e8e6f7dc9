"""Spark over the journal: a data source that reads segments, and the audit that proves nothing lost, nothing doubled.

Read: schemas (what a record is as a row), directory (which bytes are whose), walk (records and unreadable
stretches of one segment), rows (record to row), filters (what Spark pushes down), source (the data source) ->
findings (what a check reports), checksums, offsets, outcomes, checkpoints (pure DataFrame transforms, gathered in
transforms) -> report (the answer), audit (runs all) -> session (a local Spark), cli (`metaq audit`).

Reads only; no lock, so that the directory may belong to a live broker, a dead one or nobody.
"""
