"""Handlers of the broker's commands, one file a command (spec 1.5, 2.3 to 2.6, 12.1).

Read: message_ids, loop_delay, branch_timeouts, realtime (statistics), context (shared by handlers, with their view of a
connection), yielding -> message_frames, put, read_from (which replica), message_reader (from memory or disk),
filtered_reader, get, waiting, owners, fetch, find -> transaction, branch, topic, checkpoint, stats -> writes,
sync_writes, slave_writes -> dispatch. A handler runs on the loop thread, never waits, and answers through its peer, at
once or at the high watermark.
"""
