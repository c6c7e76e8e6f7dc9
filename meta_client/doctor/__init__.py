"""Diagnosis after a crash: joins every side's answers about each branch, and derives a verdict.

`metaq txn doctor` is the command. Read: verdicts (the table), evidence (sides' answers), decisions (of owners), cases
(joins them), advice (in words) -> postgres, sources (queries; read only) -> applier (does what is certain).
"""
