"""What a broker stores: topics, partition indexes over the journal, and the message store that owns both.

Read: topics (pure), index_file -> partition_index -> indexes, index_survey (pure), search, retention (pure) ->
retention_job, carrying_job -> checkpoint_taking, horizon (what is in memory), held (from readers, after a start) ->
message_store -> far_read (what is not in memory), far_reads (the thread for it) -> window, key_block (pure),
key_reading, key_files, key_indexer.
"""
