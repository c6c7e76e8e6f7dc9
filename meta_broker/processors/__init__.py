"""One file a command: what the broker answers to it (spec 1.5, 2.3 to 2.6, 12.1).

Read: realtime (what some topics count), context (what processors share, and what they see of a connection), turns ->
put, read_from (which replica), reading (from memory or by way of the disk), filtering (of what some groups get), get,
waiting, fetch, find, transaction, branch, stats, topic, checkpoint -> writes, refused_writes (a slave's) -> dispatch. A
processor runs on the loop thread, never waits, and answers through its peer, at once or at the fence.
"""
