"""The log that is the store: one write-ahead journal per broker, with its transactions. Bytes: FORMAT.md.

Read: xid, states, frame, batches, outcomes, heuristics, topic_changes, refusals, records, record_codec, runs,
publications, lives (pure) -> fold (what records add up to), fence (what waits for durability) -> open_file (read by
system call), storage (the seam to the OS) -> reserve (room for a full disk), next_segment (made ahead of need),
segments, lsn_file, copy_mark, watermark, record_window, scan (torn or rotten?), run_marks, checkpoint, snapshot ->
flush_mode, background_sync, writer_thread (the thread that writes) -> open_journal (read, wait), group_commit, journal
(append) -> replaying (what records say), recovery, carrying (live branches, forward) -> checkpointed (state and
checkpoints), transaction_store (begin, put, prepare, commit, rollback, recover, decide) -> stream (pure),
stream_writer, bootstrap, cut_file, cutting, follower (the copy a slave keeps) -> inspection, tail, damage, check
(reading from outside, dead or live), loss, repair_source, chain_repair, repair (what rot took, put back or dropped),
offline (a directory whose broker does not run).

Imports no sibling, knows no socket and no event loop.
"""
