"""Handlers of the broker's commands, one file a command (spec 1.5, 2.3 to 2.6, 12.1).

Read: message_ids, loop_delay, branch_timeouts, realtime (statistics), traffic and request_times (metrics), context
(shared by handlers, with their view of a connection) -> writes (replies at the high watermark), put, transaction,
branch, topic -> message_reader (from memory, disk or a filter; which replica to read from), get, waiting,
owners, fetch, find -> stats -> dispatch. A handler runs on the loop thread, never waits, and answers
through its peer, at once or at the high watermark.
"""
