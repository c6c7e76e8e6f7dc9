"""Logs of commands that run long: one set-up for all of them, over the standard library's loggers.

Read: events (a record's event and fields) -> formats (text, JSON) -> context (what a line belongs to) -> limit ->
handler -> counting -> setup -> audit.
"""
