"""A certificate: a database and brokers' journals, transaction by transaction, signed.

Read: sides (each side's rows), classes (joins them, and judges; pure transforms) -> database (PostgreSQL's columns as
DataFrames, one snapshot), coordinator_side (decision logs; decisions of both kinds, as a table), broker_side (a journal
and its audit) -> join (both sides, judged, with counts that must add up; reconciliation/ shares it) -> statement ->
signing, page (HTML).
"""

from typing import Final

FORMAT: Final = 1  # of certificates
